"""How a rule judges a step or a silence, and what becomes of an alert. Pure."""
