"""Weight updates of an engine process, reconstructed from the calls that pass through it.

An update is a window between two scheduled steps that contains an event of the weights. Events are a pause, calls that
load weights, a reset of the prefix cache, a new label and a wake-up. The window opens with the first of these calls. It
closes with the first step afterwards, after the resume if there was a pause. The module is pure. Times are arguments,
in seconds of the monotonic clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Update:
    """Observed update. A value of None was not observed."""

    after: float  # the last step before it
    requested_at: float | None = None  # the pause
    started_at: float | None = None
    applied_at: float | None = None
    resumed_at: float | None = None
    closed_at: float = 0.0  # the first step after it, or the end of the engine
    pause_mode: str | None = None
    cache_reset: bool | None = None  # None: nobody asked for it; False: it failed
    labelled: bool = False
    tensors: int | None = None
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def touched_weights(self) -> bool:
        """True if weights changed. A pause or a cache reset alone is no update."""
        return bool(self.calls) or self.labelled


class UpdateObserver:
    """Collector of the `Update`s of one engine, called from the engine's thread."""

    def __init__(self) -> None:
        self.open: Update | None = None
        self.closed: deque[Update] = deque()
        self._after = 0.0
        self._paused = False

    def step(self, now: float) -> None:
        """Record that a step with work was scheduled."""
        if self.open is not None and not self._paused:
            self._close(now)
        self._after = now

    def end(self, now: float) -> None:
        """End the update in progress when the engine shuts down."""
        if self.open is not None:
            self._close(now)

    def paused(self, now: float, mode: str) -> None:
        """Record that generation pauses in `mode` (abort, wait, keep)."""
        update = self._current()
        self._paused = True
        update.requested_at = update.requested_at or now
        update.pause_mode = mode

    def resumed(self, now: float) -> None:
        """Record that generation continues."""
        if self._paused:
            self._paused = False
            self._current().resumed_at = now

    def loaded(self, method: str, started: float, ended: float, tensors: int | None) -> None:
        """Record that a call that loads weights ran from `started` to `ended`."""
        update = self._current()
        update.calls[method] += 1
        update.started_at = update.started_at or started
        update.applied_at = ended
        if tensors is not None:
            update.tensors = (update.tensors or 0) + tensors

    def labelled(self, now: float) -> None:
        """Record that the engine received a weight version."""
        update = self._current()
        update.labelled = True
        update.applied_at = update.applied_at or now

    def cache_reset(self, *, successful: bool) -> None:
        """Record that the prefix cache was reset, or that the reset failed."""
        update = self._current()
        update.cache_reset = successful or bool(update.cache_reset)

    def _current(self) -> Update:
        if self.open is None:
            self.open = Update(after=self._after)
        return self.open

    def _close(self, now: float) -> None:
        if self.open is not None:
            self.open.closed_at = now
            self.closed.append(self.open)
            self.open = None


def method_name(method: Any) -> str:
    """Return the name of a `collective_rpc` method, which may be a function."""
    return method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)


def count_tensors(kwargs: Mapping[str, Any] | None) -> int | None:
    """Return the number of tensors named by an ``update_weights`` call, or None if it names none."""
    info = (kwargs or {}).get("update_info")
    names = info.get("names") if isinstance(info, dict) else getattr(info, "names", None)
    return len(names) if isinstance(names, list | tuple) else None
