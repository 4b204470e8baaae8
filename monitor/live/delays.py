"""Back-off for spool files whose read failed for an external reason. The files stay in the spool between retries.

The state is in memory only. A restarted service retries everything at once.
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
    """One pending file or folder. `since` and `last` are in seconds since the epoch; `begun` and `retry_at` are on the
    monotonic clock."""

    run: str | None
    error: str
    since: float
    last: float
    attempts: int
    begun: float
    retry_at: float


class Delays:
    """Pending files and folders of one spool. Used by the ingest thread; `document` is safe from any thread."""

    def __init__(self, time: Time = TIME) -> None:
        self._time = time
        self._delays: dict[Path, Delay] = {}

    def __len__(self) -> int:
        return len(self._delays)

    def is_due(self, path: Path) -> bool:
        """Return whether `path` may be tried now, because it never failed or its pause has ended."""
        delay = self._delays.get(path)
        return delay is None or self._time.monotonic() >= delay.retry_at

    def put_off(self, path: Path, run: str | None, error: BaseException | str) -> None:
        """Schedule the next attempt at `path` after a pause that doubles with each failure."""
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
        """Return the seconds since the first failure of `path`, or 0 if it is not pending."""
        delay = self._delays.get(path)
        return 0.0 if delay is None else self._time.monotonic() - delay.begun

    def forget(self, paths: Collection[Path]) -> None:
        """Forget paths after they were processed or removed."""
        if self._delays:
            for path in paths:
                self._delays.pop(path, None)

    def keep_only(self, paths: Collection[Path]) -> None:
        """Forget all paths that are no longer in the spool."""
        if self._delays:
            self._delays = {path: delay for path, delay in self._delays.items() if path in paths}

    def document(self) -> list[StuckFile]:
        """Return at most `SHOWN` pending files as JSON values, the longest pending first."""
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
        """Return the longest waiting time in seconds, or None if no file is pending."""
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
