"""`Recorder`: the host's thread copies, a thread of its own writes. Loads nothing: a vLLM process may only need labels or documents."""
