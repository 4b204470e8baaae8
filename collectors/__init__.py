"""Collectors: what runs inside a trainer or an engine. Light, bounded, and never raises into its host."""

from logprobe.collectors.recorder import Recorder

__all__ = ["Recorder"]
