"""`Recorder`: the host's thread copies, a thread of its own writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logprobe.collectors.recorder.recorder import Recorder

__all__ = ["Recorder"]


def __getattr__(name: str) -> object:
    # Lazy: a vLLM process that only needs labels or documents must not load the whole recorder.
    if name == "Recorder":
        from logprobe.collectors.recorder.recorder import Recorder  # noqa: PLC0415

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
