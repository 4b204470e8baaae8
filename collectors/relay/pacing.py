"""How fast a relay sends: pauses after failures, a limit on bandwidth, compression where it saves time."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final

import pyarrow as pa

from logprobe.collectors.relay.protocol import CODEC

FIRST_PAUSE: Final = 0.5  # seconds; doubles with every failure in a row
LONGEST_PAUSE: Final = 15.0  # after an outage, what waited is on its way within it
_BURST: Final = 0.25  # seconds' worth of bytes that may be sent at once
_WEIGHT: Final = 0.2  # of a new measurement in a running mean
_TRY_EVERY: Final = 16  # segments; what is not used is tried now and then, for links and contents change
_WORTHWHILE: Final = 1 << 14  # bytes; below it a round trip costs more than the bytes


class Backoff:
    """Pauses between attempts, with jitter: nodes that lost the same service must not all come back at once."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure starts with the first pause again."""
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait before the next attempt: between half of the pause and all of it."""
        pause = min(FIRST_PAUSE * 2.0 ** min(self._failures, 16), LONGEST_PAUSE)
        self._failures += 1
        return pause * self._random.uniform(0.5, 1.0)


class Bandwidth:
    """At most `rate` bytes per second; None: as many as the network takes."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def spend(self, nbytes: int) -> None:
        """Waits until `nbytes` may be sent."""
        if self._rate is None:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - _BURST) + nbytes / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)


class Compression:
    """Compresses where that is faster than sending the bytes it saves, by what was measured of both."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._codec = pa.Codec(CODEC, compression_level=1)
        self._seconds: float | None = None  # to compress a byte
        self._ratio: float | None = None  # bytes after, of one byte before
        self._wire: float | None = None  # seconds to send a byte
        self._count = 0

    def sent(self, nbytes: int, seconds: float) -> None:
        """`nbytes` took `seconds` on the wire, from the first to the acknowledgement."""
        if nbytes >= _WORTHWHILE:
            self._wire = _mean(self._wire, seconds / nbytes)

    @property
    def pays(self) -> bool:
        """Whether a byte is sent sooner when it is compressed first. True while nothing is known: it costs little, and
        a link may be slow."""
        if self._seconds is None or self._ratio is None or self._wire is None:
            return True
        return self._seconds < (1 - self._ratio) * self._wire

    def apply(self, data: pa.Buffer) -> tuple[str, pa.Buffer]:
        """``(codec, bytes)`` of one chunk; codec "": as it was."""
        if data.size < _WORTHWHILE:
            return "", data
        self._count += 1
        if not self.pays and self._count % _TRY_EVERY:
            return "", data
        started = self._clock()
        smaller = self._codec.compress(data)
        self._seconds = _mean(self._seconds, (self._clock() - started) / data.size)
        self._ratio = _mean(self._ratio, smaller.size / data.size)
        return (CODEC, smaller) if smaller.size < data.size else ("", data)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else (1 - _WEIGHT) * before + _WEIGHT * now
