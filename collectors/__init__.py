"""Collectors that run inside the trainer and the engine. They are light and bounded, and never raise into the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logprobe.collectors.recorder.recorder import Recorder

__all__ = ["Recorder"]


def __getattr__(name: str) -> object:
    # Lazy: vLLM loads the plugin in each of its processes, and most of them have nothing to record.
    if name == "Recorder":
        from logprobe.collectors.recorder.recorder import Recorder  # noqa: PLC0415

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
