"""`Recorder`: the host's thread copies, its own thread writes. Loads nothing: a vLLM process may only need labels or
documents."""
