"""When to speak: judgements about a run that need no history of their own."""
