"""The processes that score: an engine or a forward pass each, started, limited in time and ended."""
