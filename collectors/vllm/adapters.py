"""The moments after which marks of a LoRA adapter may be about what its tokens were sampled with.

An adapter is known by its name; what is loaded under it, by number, path and what a worker read there. Its version is
what was marked for it since it was loaded, and since the weights below it last changed: it is unknown in every other
case. The engine knows these moments, the monitor the marks. A load is heard of from the worker, no matter who asked for
it; as long as it read the same again, nothing has changed.

Where other content is read under the same number and path, a mark made while the files were already what they are now
is about that; every other is about what was read before.
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
    """The adapter that steps scheduled at `moment` or later use under a number. Marks since `since` may be about it.

    `path`: None where it is not known which steps. `content`: None where it could not be read; it equals nothing then.
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
    """The adapters of one engine. Moments are of the monotonic clock. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Adapter] = {}
        self._loads: dict[int, list[Load]] = {}  # by number
        self._unknown_since: list[float] = []

    def weights_changed(self, moment: float) -> None:
        """Note that the weights below all adapters changed."""
        with self._lock:
            self._unknown_since = [*self._unknown_since[-_MOST_LOADS:], moment]
            for adapter in self._known.values():
                _note(adapter, moment)

    def added(self, request: Any, moment: float) -> None:
        """Note ``add_lora``: marks from now on are about this one."""
        with self._lock:
            adapter, identity = self._get(request.lora_name), _identity(request)
            if not adapter.asked or adapter.asked[-1][1] != identity:
                self._replace(adapter, identity, moment)

    def used(self, request: Any, moment: float) -> None:
        """Note that a request for an adapter arrives."""
        with self._lock:
            adapter, identity = self._get(request.lora_name), _identity(request)
            if not adapter.asked:
                adapter.asked.append((_ALWAYS, identity))
            elif adapter.asked[-1][1] != identity:  # a mark since the last use of the other one is about this one
                self._replace(adapter, identity, moment if adapter.open else math.nextafter(adapter.last_end, math.inf))
            adapter.open += 1

    def ended(self, request: Any, moment: float) -> None:
        """Note that a request for an adapter ended."""
        with self._lock:
            adapter = self._get(request.lora_name)
            adapter.open -= 1
            adapter.last_end = max(adapter.last_end, moment)

    def read(self, number: int, load: Load, written: float | None) -> Load | None:
        """Note that a worker read an adapter whose files changed at `written` (None: unknown). If its number had other
        content before, return the load, with the moment since which marks may be about it."""
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
        """Return which marks may be about the tokens of one request, whose steps began at `times` (ascending): those
        made after `at`."""
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
        """Return the moment when another load followed the newest one of `identity`, or `_NEVER`."""
        places = [index for index, (_, asked) in enumerate(adapter.asked) if asked == identity]
        after = places[-1] + 1 if places else 0
        return adapter.asked[after][0] if after < len(adapter.asked) else _NEVER


def _note(adapter: _Adapter, moment: float) -> None:
    insort(adapter.unknown, moment)
    if len(adapter.unknown) > _MOST_LOADS:
        adapter.forgot = adapter.unknown.pop(0)


def _decided(unknown: Sequence[float], load: Load, times: array[float], start: int, stop: int) -> list[Run]:
    """Return runs of tokens that were computed with `load`, a new one for each moment since which nothing is known."""
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
    """Return the moment since which marks may be about `load`: its files were there, and marks were about its path."""
    if written is None or load.path != last.path:
        return load.moment
    return max(last.moment, min(written, load.moment))


def _equal(last: Load, load: Load) -> bool:
    same = last.path is not None and last.path == load.path and last.content is not None and load.content is not None
    return same and last.content.digest == load.content.digest  # type: ignore[union-attr]


def _identity(request: Any) -> Identity:
    return int(request.lora_int_id), str(request.lora_path)
