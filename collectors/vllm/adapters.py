"""Times after which marks of a LoRA adapter may describe the weights that sampled its tokens.

An adapter is identified by its name. Its loaded content is identified by number, path and a worker's reading. Its
version is the last mark since its load and since the last change of the base weights. In every other case the version
is unknown. The engine knows these times, and the monitor knows the marks. The worker reports each load, regardless of
the caller. A load of the same content changes nothing.

Another content may be read under the same number and path. A mark applies to this content only if it was made after
the files' last change. Earlier marks apply to the previous content.
"""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logprobe.collectors.fingerprint import Fingerprint
from logprobe.collectors.versions import Run

Identity = tuple[int, str]  # number and path: what a request asks for
_MOST_LOADS: Final = 4096
_ALWAYS: Final = float("-inf")
_NEVER: Final = float("inf")  # as what decided: no mark can be about it, however late it comes


@dataclass(frozen=True, slots=True)
class Load:
    """Adapter that steps scheduled at `moment` or later use under a number. Marks since `since` may describe it.

    `path`: path of the adapter, or None if its steps are unknown. `content`: fingerprint, or None if it could not be
    read. Content of None equals no other.
    """

    moment: float
    path: str | None
    content: Fingerprint | None
    since: float = _ALWAYS


@dataclass
class _Adapter:
    unknown: list[float] = field(default_factory=list)  # moments since which earlier marks are about other weights
    forgot: float = _ALWAYS  # up to this moment some of them are not known any more
    asked: list[tuple[float, Identity]] = field(default_factory=list)
    open: int = 0  # requests
    last_end: float = _ALWAYS  # of a request


class Adapters:
    """Adapters of one engine, with times of the monotonic clock. The class is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Adapter] = {}
        self._loads: dict[int, list[Load]] = {}  # by number
        self._unknown_since: list[float] = []

    def weights_changed(self, moment: float) -> None:
        """Record a change of the base weights of all adapters."""
        with self._lock:
            self._unknown_since = [*self._unknown_since[-_MOST_LOADS:], moment]
            for adapter in self._known.values():
                _note(adapter, moment)

    def added(self, request: Any, moment: float) -> None:
        """Record ``add_lora``. Marks from now on describe this adapter."""
        with self._lock:
            adapter, identity = self._get(request.lora_name), _identity(request)
            if not adapter.asked or adapter.asked[-1][1] != identity:
                self._replace(adapter, identity, moment)

    def used(self, request: Any, moment: float) -> None:
        """Record the arrival of a request for an adapter."""
        with self._lock:
            adapter, identity = self._get(request.lora_name), _identity(request)
            if not adapter.asked:
                adapter.asked.append((_ALWAYS, identity))
            elif adapter.asked[-1][1] != identity:  # a mark since the last use of the other one is about this one
                self._replace(adapter, identity, moment if adapter.open else math.nextafter(adapter.last_end, math.inf))
            adapter.open += 1

    def ended(self, request: Any, moment: float) -> None:
        """Record the end of a request for an adapter."""
        with self._lock:
            adapter = self._get(request.lora_name)
            adapter.open -= 1
            adapter.last_end = max(adapter.last_end, moment)

    def read(self, number: int, load: Load, written: float | None) -> Load | None:
        """Record that a worker read an adapter whose files changed at `written`, or None if unknown.

        If its number had other content before, return the load with the time since which marks may describe it.
        """
        with self._lock:
            loads = self._loads.setdefault(number, [])
            last = loads[-1] if loads else None
            if last is not None and _equal(last, load):
                return None
            since = _ALWAYS if last is None else _since(last, load, written)
            known = Load(load.moment, load.path, load.content, since)
            loads.append(known)
            del loads[:-_MOST_LOADS]
            if len(self._loads) > _MOST_LOADS:
                del self._loads[next(iter(self._loads))]
            return None if last is None else known

    def runs(self, request: Any, times: array[float]) -> list[Run]:
        """Return runs of a request's tokens, whose steps began at `times` (ascending).

        Marks after `at` may describe a run.
        """
        with self._lock:
            adapter = self._get(request.lora_name)
            number, path = identity = _identity(request)
            end, unknown = self._end_of(adapter, identity), [adapter.forgot, *adapter.unknown]
            loads = list(self._loads.get(number, ()))
        runs: list[Run] = []
        while (start := runs[-1].end if runs else 0) < len(times):
            index = bisect_right(loads, times[start], key=lambda load: load.moment)
            load = loads[index - 1] if index else None
            following = loads[index] if index < len(loads) else None
            until = min(end, _NEVER if following is None else following.since)
            if load is None or load.path != path or times[start] >= until:
                bounded = end > times[start] and following is not None
                stop = bisect_left(times, following.moment, start + 1) if bounded and following else len(times)
                runs.append(Run(stop, None, _NEVER, times[stop - 1]))
            else:
                stop = bisect_left(times, until, start)
                runs += _decided(unknown, load, times, start, stop)
        return runs

    def _get(self, name: str) -> _Adapter:
        if name not in self._known:
            self._known[name] = _Adapter(unknown=sorted(self._unknown_since))
        return self._known[name]

    @staticmethod
    def _replace(adapter: _Adapter, identity: Identity, moment: float) -> None:
        _note(adapter, moment)
        adapter.asked.append((moment, identity))
        del adapter.asked[:-_MOST_LOADS]

    @staticmethod
    def _end_of(adapter: _Adapter, identity: Identity) -> float:
        """Return the time at which another load followed the newest one of `identity`, or `_NEVER`."""
        places = [index for index, (_, asked) in enumerate(adapter.asked) if asked == identity]
        after = places[-1] + 1 if places else 0
        return adapter.asked[after][0] if after < len(adapter.asked) else _NEVER


def _note(adapter: _Adapter, moment: float) -> None:
    insort(adapter.unknown, moment)
    if len(adapter.unknown) > _MOST_LOADS:
        adapter.forgot = adapter.unknown.pop(0)


def _decided(unknown: Sequence[float], load: Load, times: array[float], start: int, stop: int) -> list[Run]:
    """Return runs of tokens computed with `load`. A new run begins at each time in `unknown`."""
    runs: list[Run] = []
    while start < stop:
        index = bisect_right(unknown, times[start])
        end = bisect_left(times, unknown[index], start, stop) if index < len(unknown) else stop
        at = max(unknown[index - 1], load.since) if index else _NEVER
        runs.append(
            Run(end, None, None if at == _ALWAYS else at, times[end - 1], None if at == _NEVER else load.content)
        )
        start = end
    return runs


def _since(last: Load, load: Load, written: float | None) -> float:
    """Return the time since which marks may describe `load`: its files existed, and marks referred to its path."""
    if written is None or load.path != last.path:
        return load.moment
    return max(last.moment, min(written, load.moment))


def _equal(last: Load, load: Load) -> bool:
    same = last.path is not None and last.path == load.path and last.content is not None and load.content is not None
    return same and last.content.digest == load.content.digest  # type: ignore[union-attr]


def _identity(request: Any) -> Identity:
    return int(request.lora_int_id), str(request.lora_path)
