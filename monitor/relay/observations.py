"""What the receiver saw and the service has to know: how far nodes are behind, and who was refused. Bounded, whatever nodes do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.monitor.plain_text import steerless

LOGGER: Final = logging.getLogger("logprobe.receiver")
NODES: Final = 10_000  # rows of (run, node) kept in memory
_REFUSALS: Final = 512  # kinds of refusals in one report
_WORDS: Final = 300
_LOG_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Refusal:
    words: str
    since: str  # ISO 8601, UTC
    count: int = 0


class Observations:
    """Safe from any thread. `take` hands over what is new, `give_back` returns what could not be delivered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[tuple[str, str], dict[str, Any]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._heard: dict[str, float] = {}  # node → on the monotonic clock
        self._relays: dict[str, list[str]] = {}  # of each node, the two heard last
        self._refusals: dict[tuple[str, str, str], _Refusal] = {}
        self._logged: dict[tuple[str, str, str], float] = {}

    def node(self, run: str, node: str, row: Mapping[str, Any]) -> None:
        """What a node said of its queue of one run."""
        with self._lock:
            key = (run, node)
            if key not in self._nodes and len(self._nodes) >= NODES:
                del self._nodes[next(iter(self._nodes))]
            self._nodes[key] = {"run": run, "node": node, **row}
            self._changed.add(key)
            self._heard[node] = time.monotonic()
            if len(self._heard) > NODES:
                del self._heard[next(iter(self._heard))]

    def is_shared(self, node: str, relay: str) -> bool:
        """Whether two relays call themselves by one name: a restarted one does not come back after its successor."""
        with self._lock:
            before = self._relays.pop(node, [])
            self._relays[node] = [*(each for each in before if each != relay), relay][-2:]
            if len(self._relays) > NODES:
                del self._relays[next(iter(self._relays))]
            return relay in before[:-1]

    def nodes_heard(self, seconds: float) -> int:
        """How many nodes were heard of in the last `seconds`."""
        since = time.monotonic() - seconds
        with self._lock:
            return sum(heard > since for heard in self._heard.values())

    def refused(self, who: str, what: str, peer: str, words: str) -> None:
        """Somebody was refused. Equal ones are counted until they are handed over."""
        key = (steerless(who)[:80], what, _address(peer))
        text = steerless(" ".join(words.split()))[:_WORDS]
        with self._lock:
            if key in self._refusals or len(self._refusals) < _REFUSALS:
                found = self._refusals.setdefault(
                    key, _Refusal(text, datetime.now(UTC).isoformat(timespec="milliseconds"))
                )
                found.count += 1
            log = time.monotonic() - self._logged.get(key, -_LOG_SECONDS) >= _LOG_SECONDS
            if log:
                self._logged = {} if len(self._logged) > _REFUSALS else self._logged
                self._logged[key] = time.monotonic()
        if log:
            LOGGER.warning("refused %s from %s at %s: %s", what, key[0], key[2], text)

    def take(self) -> dict[str, Any]:
        """What is new, as one document."""
        with self._lock:
            nodes = [self._nodes[key] for key in self._changed if key in self._nodes]
            refusals = [
                {
                    "who": who,
                    "what": what,
                    "peer": peer,
                    "words": found.words,
                    "count": found.count,
                    "since": found.since,
                }
                for (who, what, peer), found in self._refusals.items()
            ]
            self._changed, self._refusals = set(), {}
        return {"nodes": nodes, "refusals": refusals}

    def give_back(self, document: Mapping[str, Any]) -> None:
        """It could not be delivered; newer reports of the same nodes stay."""
        with self._lock:
            self._changed.update((row["run"], row["node"]) for row in document["nodes"])
            for each in document["refusals"]:
                key = (each["who"], each["what"], each["peer"])
                if key in self._refusals or len(self._refusals) < _REFUSALS:
                    self._refusals.setdefault(key, _Refusal(each["words"], each["since"])).count += each["count"]


def _address(peer: str) -> str:
    """The machine of gRPC's ``ipv4:10.0.0.1:4711``; ports differ with every connection.

    >>> _address("ipv4:10.0.0.1:4711"), _address("")
    ('10.0.0.1', 'unknown')
    """
    return peer.partition(":")[2].rpartition(":")[0] or "unknown"
