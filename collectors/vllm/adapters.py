"""Which version which LoRA adapter has.

An adapter is known by its name; what is loaded under it, by number and path. Its version is what was marked for it since it was loaded, and
since the weights below it last changed: it is unknown in every other case.
"""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final

from logprobe.collectors.versions import Decision, Span, Timeline

Identity = tuple[int, str]  # number and path: what was loaded
_MOST_LOADS: Final = 4096
_ALWAYS: Final = float("-inf")


@dataclass
class _Adapter:
    timeline: Timeline = field(default_factory=Timeline)
    loads: list[tuple[float, Identity | None]] = field(default_factory=list)  # None: removed
    open: int = 0  # requests
    last_end: float = _ALWAYS  # of a request


class Adapters:
    """The adapters of one engine. Moments are of the monotonic clock. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Adapter] = {}
        self._unknown_since: list[float] = []

    def weights_changed(self, moment: float) -> None:
        """The weights below all adapters changed."""
        with self._lock:
            self._unknown_since = [*self._unknown_since[-_MOST_LOADS:], moment]
            for adapter in self._known.values():
                adapter.timeline.set(moment, None)

    def timeline(self, name: str) -> Timeline:
        """Versions of one adapter."""
        with self._lock:
            return self._get(name).timeline

    def loaded(self, request: Any, moment: float) -> None:
        """``add_lora``; what is loaded already stays as it is."""
        with self._lock:
            adapter, identity = self._get(request.lora_name), _identity(request)
            if not adapter.loads or adapter.loads[-1][1] != identity or getattr(request, "load_inplace", False):
                self._replace(adapter, identity, moment)

    def removed(self, number: int, moment: float) -> None:
        """``remove_lora``: the next load may be of other content."""
        with self._lock:
            for adapter in self._known.values():
                if adapter.loads and (adapter.loads[-1][1] or (None,))[0] == number:
                    adapter.loads.append((moment, None))

    def used(self, request: Any, moment: float) -> None:
        """A request for an adapter arrives, which loads it where it is not yet."""
        with self._lock:
            adapter, identity = self._get(request.lora_name), _identity(request)
            if not adapter.loads:
                adapter.loads.append((_ALWAYS, identity))
            elif adapter.loads[-1][1] != identity:  # a mark since the last use of the other one is about this one
                self._replace(adapter, identity, moment if adapter.open else math.nextafter(adapter.last_end, math.inf))
            adapter.open += 1

    def ended(self, request: Any, moment: float) -> None:
        """A request for an adapter ended."""
        with self._lock:
            adapter = self._get(request.lora_name)
            adapter.open -= 1
            adapter.last_end = max(adapter.last_end, moment)

    def spans(self, request: Any, times: array[float]) -> tuple[list[Span], list[Decision]]:
        """Versions of the tokens of one request, as `Timeline.spans`, and how they were decided; unknown once the name is another's."""
        with self._lock:
            adapter = self._get(request.lora_name)
            end = self._end_of(adapter, _identity(request))
        count = bisect_left(times, end)
        spans, decisions = adapter.timeline.spans(times[:count]), adapter.timeline.decisions(times[:count])
        if count < len(times):
            spans.append((count, len(times), None))
            # No mark can be about what is left of an adapter that was replaced, however late it comes.
            decisions.append(Decision(len(times), float("inf"), times[-1]))
        return spans, decisions

    def _get(self, name: str) -> _Adapter:
        if name not in self._known:
            adapter = self._known[name] = _Adapter()
            for moment in self._unknown_since:
                adapter.timeline.set(moment, None)
        return self._known[name]

    @staticmethod
    def _replace(adapter: _Adapter, identity: Identity, moment: float) -> None:
        adapter.timeline.set(moment, None)
        adapter.loads.append((moment, identity))
        del adapter.loads[:-_MOST_LOADS]

    @staticmethod
    def _end_of(adapter: _Adapter, identity: Identity) -> float:
        """When the newest load of `identity` was followed by another."""
        places = [place for place, (_, loaded) in enumerate(adapter.loads) if loaded == identity]
        after = places[-1] + 1 if places else 0
        return adapter.loads[after][0] if after < len(adapter.loads) else float("inf")


def _identity(request: Any) -> Identity:
    return int(request.lora_int_id), str(request.lora_path)
