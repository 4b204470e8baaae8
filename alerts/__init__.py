"""Judgements about a run that decide when to notify. They need no history of their own."""
