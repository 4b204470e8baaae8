"""Wall clock and monotonic clock of a machine.

An operator may set the wall clock. Processes of one machine share the monotonic clock, which on Linux counts from the
boot. The monotonic clock orders events of one machine. Times of another machine are converted by the offset between the
two clocks. Setting the wall clock invalidates that offset.
"""

from __future__ import annotations

import functools
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_LOOKS: Final = 5
LARGEST_DRIFT: Final = 0.1  # seconds between two looks; a clock that is slewed moves a thousandth of that


class Time:
    """Clocks of this machine, as an object that tests can replace."""

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the wall clock in UTC."""
        return datetime.fromtimestamp(self.wall(), UTC)

    def stamp(self) -> str:
        """Return the wall clock as ISO 8601 in UTC."""
        return self.now().isoformat(timespec="milliseconds")


TIME: Final = Time()


@functools.cache
def machine() -> str | None:
    """Return an identifier of this boot and the process's time namespace, or None if unknown.

    Equal identifiers share one monotonic clock. None equals no identifier.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    try:
        offsets = Path("/proc/self/timens_offsets").read_text().split()
    except OSError:  # a kernel without time namespaces
        offsets = []
    shifted = [word for word in offsets if word.strip("-0").isdigit()]
    return "+".join([boot, *shifted])


class Clock:
    """Monotonic clock of a process and its wall clock, in seconds."""

    def __init__(self, offset: float | None = None) -> None:
        """Set the `offset` of the wall clock, by default the current one."""
        self.offset = offset_now() if offset is None else offset
        self.jumped_at: float | None = None  # when the wall clock was last seen to be set

    def jump(self) -> float:
        """Return the seconds by which the wall clock was set since the last call, or 0."""
        offset = offset_now()
        jump, self.offset = offset - self.offset, offset
        if abs(jump) < LARGEST_DRIFT:
            return 0.0
        self.jumped_at = time.monotonic()
        return jump

    def wall(self, moment: float) -> float:
        """Convert a time of the monotonic clock to epoch seconds by the current offset."""
        return moment + self.offset

    def moment(self, wall: float) -> float:
        """Convert epoch seconds to a time of the monotonic clock by the current offset."""
        return wall - self.offset


def offset_now() -> float:
    """Return wall clock − monotonic clock.

    Of several readings, use the one with the least time between the two clocks, since other threads may interrupt.
    """
    looks = []
    for _ in range(_LOOKS):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        looks.append((after - before, wall - (before + after) / 2))
    return min(looks)[1]
