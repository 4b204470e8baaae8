"""Scorer processes, each with an engine or a forward pass and a time limit."""
