"""Capture inside vLLM: a plugin that watches the engine core of every vLLM process in its environment."""
