"""Two clocks: the wall's, which may be set, and the monotonic one, which processes of one machine share.

What happened before what inside one machine is decided by the monotonic clock (Linux: since the boot). Another machine
knows only our wall clock, so its times are brought over by the offset between the two; when the wall clock is set, that
offset is worth nothing.
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
    """The two clocks of this machine, as an object that a test replaces."""

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
    """Return the name of this boot and of the process's time namespace: equal names have one monotonic clock. None
    if it is not known, and equal to none."""
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
    """The monotonic clock of a process, and its wall clock. Seconds."""

    def __init__(self, offset: float | None = None) -> None:
        """Set the `offset` of the wall clock, by default the present one."""
        self.offset = offset_now() if offset is None else offset
        self.jumped_at: float | None = None  # when the wall clock was last seen to be set

    def jump(self) -> float:
        """Return by how much the wall clock was set since the last call, or 0."""
        offset = offset_now()
        jump, self.offset = offset - self.offset, offset
        if abs(jump) < LARGEST_DRIFT:
            return 0.0
        self.jumped_at = time.monotonic()
        return jump

    def wall(self, moment: float) -> float:
        """Return the epoch seconds of a moment of the monotonic clock, as the wall clock goes now."""
        return moment + self.offset

    def moment(self, wall: float) -> float:
        """Return the moment of the monotonic clock at which the wall clock, as it goes now, showed `wall`."""
        return wall - self.offset


def offset_now() -> float:
    """Return wall clock − monotonic clock: of several looks the one with the least time between the two, which others
    may have taken."""
    looks = []
    for _ in range(_LOOKS):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        looks.append((after - before, wall - (before + after) / 2))
    return min(looks)[1]
