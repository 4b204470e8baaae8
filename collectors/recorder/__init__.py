"""`Recorder`: the host's thread copies data, and a background thread writes it.

The package imports nothing by itself, because a vLLM process may need only labels or documents.
"""
