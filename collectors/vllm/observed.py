"""Data about one engine that its hooks collect and its emitter writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from logprobe.collectors.clock import Clock
from logprobe.collectors.spool.schema import LARGEST
from logprobe.collectors.versions import Timeline
from logprobe.collectors.vllm.adapters import Adapters
from logprobe.collectors.vllm.capture import Capture
from logprobe.collectors.vllm.weights.updates import UpdateObserver

Checksums = tuple[float, float, Sequence[Mapping[str, str]]]  # begin, end, and each worker's digests by tensor


@dataclass
class Observed:
    """Engine's samples, updates and versions, with the clocks that its records of weights state."""

    capture: Capture
    updates: UpdateObserver = field(default_factory=UpdateObserver)
    timeline: Timeline = field(default_factory=Timeline)
    clock: Clock = field(default_factory=Clock)
    started: float = field(default_factory=time.monotonic)  # marks made before belong to an earlier engine
    prefix: str = ""  # of sample ids
    engine_config_id: str | None = None
    caches_prefixes: bool | None = None
    checksums: deque[Checksums] = field(default_factory=deque)  # that the engine's user asked for

    @property
    def adapters(self) -> Adapters:
        """LoRA adapters of the engine."""
        return self.capture.adapters

    @property
    def clock_set(self) -> int | None:
        """Time at which the wall clock was last set, in microseconds of the monotonic clock, or None if it was not."""
        return None if self.clock.jumped_at is None else micros(self.clock.jumped_at)

    def seen(self, began: float, ended: float, decided: float | None) -> dict[str, int | None]:
        """Return the times of a reading and of the engine's last version decision, as `SEEN` in the schema."""
        return {
            "began": micros(began),
            "ended": micros(ended),
            "decided": None if decided is None else micros(decided),
            "clock_offset": micros(self.clock.offset),
            "clock_set": self.clock_set,
            "engine_started": micros(self.started),
        }

    def wall(self, moment: float | None) -> datetime | None:
        """Convert a time of the monotonic clock to the wall clock."""
        return None if moment is None else datetime.fromtimestamp(self.clock.wall(moment), UTC)


def micros(seconds: float) -> int:
    """Return whole microseconds. An infinite time becomes one after every mark."""
    return round(min(seconds * 1e6, LARGEST))
