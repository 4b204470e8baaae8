"""Where notifications go: one module per channel."""
