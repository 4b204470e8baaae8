"""`weights` records from the readings of an engine's workers: the version of each fingerprint, and whether a change was
announced.

A reading has the version that the engine was said to have while it was taken; null where it was unknown, or where
something happened to the weights meanwhile. It is judged some seconds later, when marks of that time have been read.
Weights that changed between two readings without a load, a label or a mark make the version unknown since the first of
the two.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.fingerprint import Fingerprint
from logprobe.collectors.health import Health
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.versions import Run, Timeline
from logprobe.collectors.vllm.adapters import Adapters, Load
from logprobe.collectors.vllm.weights.exchange import Answer, Exchange, Told

_LOOK_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 5.0  # a mark is read at most so long after it was made
_CLOCKS_DIFFER: Final = 1.0  # seconds, between machines


@dataclass(frozen=True)
class Reading:
    """Weights of one worker; moments are on the engine's monotonic clock. `before`: its last reading, if the weights
    changed since."""

    worker: str | None
    reason: str
    began: float
    ended: float
    fingerprint: Fingerprint
    before: Reading | None = None
    surprising: bool = False  # nothing was known, when it arrived, that could have changed the weights


class Fingerprints:
    """The readings of one engine; used by its emitter's thread alone."""

    def __init__(self, exchange: Exchange, timeline: Timeline, adapters: Adapters, clock: Clock) -> None:
        self._exchange = exchange
        self._timeline = timeline
        self._adapters = adapters
        self._clock = clock
        self._keys: dict[str | None, tuple[str, ...]] = {}
        self._last: dict[str | None, Reading] = {}
        self._written: dict[str | None, tuple[str, str | None]] = {}
        self._waiting: deque[Reading] = deque()
        self._marks: deque[float] = deque(maxlen=4096)
        self._next_look = 0.0
        self._under_label: dict[tuple[str, str], Fingerprint] = {}  # (adapter, version) → what it was last seen to be

    def ask(self, reason: str) -> None:
        """Have the weights read soon. Raises `OSError`."""
        self._exchange.asked.append({"reason": reason})

    def marked(self, moment: float) -> None:
        """Note that the weights were marked."""
        self._marks.append(moment)

    def write(self, recorder: Recorder, health: Health, replica: str | None, *, everything: bool = False) -> None:
        """Take the readings of workers, and write those that can be judged. Raises `OSError`."""
        now = time.monotonic()
        if now < self._next_look and not everything:
            return
        self._next_look = now + _LOOK_SECONDS
        for worker, answer in self._exchange.new_answers():
            self._take(worker, answer)
        while self._waiting and (everything or self._waiting[0].ended + _PATIENCE_SECONDS <= now):
            self._write(self._waiting.popleft(), recorder, health, replica)

    def take_adapters(self, recorder: Recorder, replica: str | None) -> None:
        """Take the adapters that workers have loaded. Raises `OSError`."""
        for line in self._exchange.new_adapters():
            began, _ = self._moments(line, line["began"], line["began"])
            moment = began if line["step"] is None else float(line["step"])
            written = None if line["written"] is None else float(line["written"]) + self._shift(line)
            hashes, keys = line["hashes"], line["keys"] or ()
            content = None if hashes is None else Fingerprint(tuple(keys), np.array(hashes, np.uint32))
            if self._adapters.read(int(line["number"]), Load(moment, line["path"], content), written):
                self._unknown_since(moment, recorder, replica, adapter=line["name"])

    def write_adapter(self, name: str, runs: Iterable[Run], recorder: Recorder, replica: str | None) -> None:
        """Write the content that was loaded under the versions of tokens."""
        for run in runs:
            if run.version is None or run.content is None:
                continue
            if self._under_label.get((name, run.version)) is not run.content:
                self._under_label[name, run.version] = run.content
                at = datetime.fromtimestamp(self._clock.wall(run.last), UTC)
                recorder.weights(
                    run.version,
                    source="worker",
                    replica=replica,
                    applied_at=at,
                    adapter=name,
                    fingerprint=run.content,
                    reason="use",
                )

    def _unknown_since(
        self, moment: float, recorder: Recorder, replica: str | None, adapter: str | None = None
    ) -> None:
        """Record a mark of no version, for records that were written before this was known. `adapter`: None: also of
        all adapters."""
        at = datetime.fromtimestamp(self._clock.wall(moment), UTC)
        recorder.weights(
            None, source="engine", replica=replica, applied_at=at, adapter=adapter, moment=moment, machine=machine()
        )

    def end(self) -> None:
        """Remove the engine's folder."""
        self._exchange.remove()

    def _take(self, worker: str | None, answer: Answer) -> None:
        if "keys" in answer:
            self._keys[worker] = tuple(answer["keys"])
        keys, hashes = self._keys.get(worker, ()), np.array(answer["hashes"], np.uint32)
        if len(keys) != len(hashes):
            return  # its keys were in a line that was lost
        began, ended = self._moments(answer, answer["began"], answer["ended"])
        reading = Reading(worker, str(answer["reason"]), began, ended, Fingerprint(keys, hashes))
        last = self._last.get(worker)
        if last is not None and last.fingerprint.keys == keys and last.fingerprint.digest != reading.fingerprint.digest:
            reading = Reading(
                worker, reading.reason, began, ended, reading.fingerprint, last, self._surprising(last, ended)
            )
        self._last[worker] = reading
        self._waiting.append(reading)

    def _moments(self, told: Told, began: float, ended: float) -> tuple[float, float]:
        """Return bounds of a time span on the engine's monotonic clock."""
        unsure = 0.0 if _is_ours(told) else _CLOCKS_DIFFER
        shift = self._shift(told)
        return began + shift - unsure, ended + shift + unsure

    def _shift(self, told: Told) -> float:
        """Return the distance from a worker's monotonic clock to the engine's."""
        return 0.0 if _is_ours(told) else told["wall"] - self._clock.offset

    def _surprising(self, last: Reading, ended: float) -> bool:
        """Return whether the change of the weights was unannounced; their version is unknown from then on."""
        if self._timeline.at(last.ended) is None or not self._timeline.unbroken(last.began, ended):
            return False
        since = float(np.nextafter(last.ended, np.inf))
        self._timeline.set(since, None)
        self._adapters.weights_changed(since)
        return True

    def _write(self, reading: Reading, recorder: Recorder, health: Health, replica: str | None) -> None:
        version = self._timeline.at(reading.began)
        if not self._timeline.unbroken(np.nextafter(reading.began, np.inf), reading.ended):
            version = None
        reason, before = reading.reason, reading.before
        if reading.surprising and before is not None and not self._marked_between(before.ended, reading.ended):
            self._unknown_since(float(np.nextafter(before.ended, np.inf)), recorder, replica)
        if reading.surprising and before is not None and not self._was_marked(before, reading):
            reason = "unannounced"
            health.report(
                "weights_changed_unannounced",
                "the weights changed although no load, label or mark was seen: something writes them in place; their "
                "version is unknown "
                "until the next weights.mark(version)",
            )
        news = (reading.fingerprint.digest, version)
        if reason == "check" and self._written.get(reading.worker) == news:
            return
        self._written[reading.worker] = news
        recorder.weights(
            version,
            source="worker",
            replica=replica,
            applied_at=datetime.fromtimestamp(self._clock.wall(reading.began), UTC),
            fingerprint=reading.fingerprint,
            worker=reading.worker,
            reason=reason,
        )

    def _was_marked(self, before: Reading, reading: Reading) -> bool:
        """Return whether a mark came between the two, or so soon afterwards that it is about this change."""
        return self._marked_between(before.began, reading.ended + _PATIENCE_SECONDS)

    def _marked_between(self, since: float, until: float) -> bool:
        return any(since <= moment <= until for moment in self._marks)


def _is_ours(told: Told) -> bool:
    return told.get("machine") is not None and told["machine"] == machine()
