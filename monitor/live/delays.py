"""Files in the spool that cannot be read for a reason that does not lie in the file: they wait there, and are tried
again with back-off.

In memory only: a service that starts tries everything at once.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors.clock import TIME, Time
from logprobe.monitor.plain_text import printable
from logprobe.monitor.service.status import StuckFile

FIRST_PAUSE: Final = 1.0  # seconds; doubles with every failure
LONGEST_PAUSE: Final = 60.0
SHOWN: Final = 50  # in a report; the number of all is beside it

# The process or the machine is short of something, whatever file is read: as soon as it is there again, all can go on.
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


@dataclass(slots=True)
class Delay:
    """One file or folder that waits. `since` and `last`: seconds since the epoch; `begun` and `retry_at`: on the
    monotonic clock."""

    run: str | None
    error: str
    since: float
    last: float
    attempts: int
    begun: float
    retry_at: float


class Delays:
    """The files and folders of one spool that wait. Belongs to the thread that ingests; `document` may be called from
    others."""

    def __init__(self, time: Time = TIME) -> None:
        self._time = time
        self._delays: dict[Path, Delay] = {}

    def __len__(self) -> int:
        return len(self._delays)

    def is_due(self, path: Path) -> bool:
        """Return whether `path` may be tried now: it never failed, or its pause is over."""
        delay = self._delays.get(path)
        return delay is None or self._time.monotonic() >= delay.retry_at

    def put_off(self, path: Path, run: str | None, error: BaseException | str) -> None:
        """Try `path` again after a pause, twice as long as the one before it."""
        now, moment = self._time.wall(), self._time.monotonic()
        delay = self._delays.get(path)
        attempts = 1 if delay is None else delay.attempts + 1
        self._delays[path] = Delay(
            run=None if run is None else printable(run),
            error=printable(error if isinstance(error, str) else _words(error)),
            since=now if delay is None else delay.since,
            last=now,
            attempts=attempts,
            begun=moment if delay is None else delay.begun,
            retry_at=moment + _pause(error, attempts),
        )

    def seconds(self, path: Path) -> float:
        """For how long `path` has been waiting."""
        delay = self._delays.get(path)
        return 0.0 if delay is None else self._time.monotonic() - delay.begun

    def forget(self, paths: Collection[Path]) -> None:
        """They were dealt with."""
        if self._delays:
            for path in paths:
                self._delays.pop(path, None)

    def keep_only(self, paths: Collection[Path]) -> None:
        """Forget those that are in the spool no more."""
        if self._delays:
            self._delays = {path: delay for path, delay in self._delays.items() if path in paths}

    def document(self) -> list[StuckFile]:
        """Those that wait, the longest-waiting first, at most `SHOWN` of them, as JSON values."""
        longest = sorted(self._delays.copy().items(), key=lambda item: item[1].since)[:SHOWN]
        now = self._time.monotonic()
        return [
            {
                "path": printable(str(path)),
                "run": delay.run,
                "error": delay.error,
                "since": delay.since,
                "attempts": delay.attempts,
                "retry_seconds": round(max(0.0, delay.retry_at - now), 1),
            }
            for path, delay in longest
        ]

    def longest_seconds(self) -> float | None:
        """For how long the first of them has been waiting; None: none waits."""
        since = [delay.since for delay in self._delays.copy().values()]
        return max(0.0, self._time.wall() - min(since)) if since else None


def _pause(error: BaseException | str, attempts: int) -> float:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES):
        return FIRST_PAUSE
    return min(FIRST_PAUSE * 2.0 ** min(attempts - 1, 16), LONGEST_PAUSE)


def _words(error: BaseException) -> str:
    numbered = isinstance(error, OSError) and error.errno is not None and error.strerror
    text = f"{errno.errorcode.get(error.errno, error.errno)}: {error.strerror}" if numbered else str(error)  # type: ignore[attr-defined]
    return text if numbered else f"{type(error).__name__}: {text}"
