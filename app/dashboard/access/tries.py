"""Back-off for wrong tokens, which doubles with each wrong attempt from an address.

`now` is in seconds of any clock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 60.0
_ADDRESSES: Final = 1_000  # remembered; the one heard of longest ago is forgotten first


@dataclass(frozen=True, slots=True)
class _Address:
    wrong: int
    until: float


class Tries:
    """Failed attempts in all sessions of one process. Thread-safe.

    >>> tries = Tries()
    >>> tries.failed("10.0.0.1", now=0.0), tries.wait("10.0.0.1", now=0.25), tries.wait("10.0.0.2", now=0.25)
    (1, 0.75, 0.0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[str, _Address] = {}

    def wait(self, address: str, now: float) -> float:
        """Return the seconds before `address` may try again, or 0 if it may try now."""
        with self._lock:
            tried = self._addresses.get(address)
        return 0.0 if tried is None else max(0.0, tried.until - now)

    def failed(self, address: str, now: float) -> int:
        """Count a wrong attempt and return the number of wrong attempts from `address`."""
        with self._lock:
            before = self._addresses.pop(address, None)
            wrong = 1 + (before.wrong if before else 0)
            pause = min(_FIRST_SECONDS * 2.0 ** min(wrong - 1, 10), _LONGEST_SECONDS)
            self._addresses[address] = _Address(wrong, now + pause)
            if len(self._addresses) > _ADDRESSES:
                del self._addresses[next(iter(self._addresses))]
        return wrong

    def passed(self, address: str) -> int:
        """Forget `address` and return the number of its wrong attempts."""
        with self._lock:
            tried = self._addresses.pop(address, None)
        return tried.wrong if tried else 0
