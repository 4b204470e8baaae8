"""Conversion of the readings of an engine's workers to `weights` records.

A reading has its time and the engine's own knowledge of the version. The monitor adds the marks. Weights may change
between two readings without a load or a label. Unless they were marked, they are then unknown since the first reading,
and the record reports this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.collectors.clock import machine
from logprobe.collectors.fingerprint import Fingerprint
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.versions import Run
from logprobe.collectors.vllm.adapters import Load
from logprobe.collectors.vllm.observed import Checksums, Observed, micros
from logprobe.collectors.vllm.weights.exchange import Answer, Exchange, Told

_LOOK_SECONDS: Final = 0.5
_SAY_AGAIN_SECONDS: Final = 60.0  # what has not changed; a mark may have named it otherwise
_CLOCKS_DIFFER: Final = 1.0  # seconds, between machines
_OF_REPLICA: Final = re.compile(r"^dp\d+:")


@dataclass(frozen=True)
class Reading:
    """Weights of one worker, with times of the engine's monotonic clock."""

    worker: str | None
    reason: str
    began: float
    ended: float
    fingerprint: Fingerprint


class Fingerprints:
    """Readings of one engine, used only by its emitter's thread."""

    def __init__(self, exchange: Exchange, observed: Observed, recorder: Recorder) -> None:
        self._exchange = exchange
        self._observed = observed
        self._recorder = recorder
        self._cleared = False if observed.caches_prefixes else None  # reading the weights clears nothing
        self._keys: dict[str | None, tuple[str, ...]] = {}
        self._last: dict[str | None, Reading] = {}
        self._said: dict[str | None, float] = {}  # worker → moment of its reading that was written last
        self._next_look = 0.0
        self._used: dict[str, tuple[Fingerprint, float]] = {}  # adapter → content that was said, and of which moment

    def ask(self, reason: str) -> None:
        """Request a reading of the weights. Raise `OSError`."""
        self._exchange.asked.append({"reason": reason})

    def write(self, *, everything: bool = False) -> None:
        """Write the readings of workers that contain news. Raise `OSError`."""
        now = time.monotonic()
        if now < self._next_look and not everything:
            return
        self._next_look = now + _LOOK_SECONDS
        for worker, answer in self._exchange.new_answers():
            self._take(worker, answer)
        for worker, last in self._last.items():
            if everything and self._said.get(worker) != last.began:  # the engine ends
                self._write(last, None)

    def take_adapters(self) -> None:
        """Record the adapters that workers have loaded. Raise `OSError`."""
        for line in self._exchange.new_adapters():
            began, _ = self._moments(line, line["began"], line["began"])
            moment = began if line["step"] is None else float(line["step"])
            written = None if line["written"] is None else float(line["written"]) + self._shift(line)
            hashes, keys = line["hashes"], line["keys"] or ()
            content = None if hashes is None else Fingerprint(tuple(keys), np.array(hashes, np.uint32))
            load = self._observed.adapters.read(int(line["number"]), Load(moment, line["path"], content), written)
            if load is not None:  # marks before it were about other content, but for those since its files were written
                self._recorder.weights(
                    None,
                    source="worker",
                    applied_at=self._observed.wall(moment),
                    adapter=line["name"],
                    moment=moment,
                    machine=machine(),
                    seen=self._observed.seen(moment, moment, None),
                    unless={"since": micros(load.since), "until": micros(moment)},
                    reason="load",
                )

    def write_adapter(self, name: str, runs: Iterable[Run]) -> None:
        """Write the adapter content that sampled the tokens, if it is new or its last record is old."""
        for run in runs:
            if run.content is None:
                continue
            content, said = self._used.get(name, (None, 0.0))
            if content is not run.content or said + _SAY_AGAIN_SECONDS <= run.last:
                self._used[name] = run.content, run.last
                self._recorder.weights(
                    None,
                    source="worker",
                    applied_at=self._observed.wall(run.last),
                    adapter=name,
                    machine=machine(),
                    seen=self._observed.seen(run.last, run.last, run.at),
                    fingerprint=run.content,
                    reason="use",
                )

    def write_checksums(self, told: Checksums) -> None:
        """Write the engine's own checksums of whole tensors, comparable between its versions and replicas."""
        began, ended, workers = told
        for rank, digests in enumerate(workers):
            # vLLM puts the ranks before a name; the data-parallel one is that of a replica.
            names = [_OF_REPLICA.sub("", name) for name in digests]
            hashes = np.array([int(digest[:8], 16) for digest in digests.values()], np.uint32)
            fingerprint = Fingerprint(tuple(f"{name} sha256" for name in names), hashes)
            name = "checksums" if len(workers) == 1 else f"checksums-{rank}"
            self._write(Reading(name, "checksum", began, ended, fingerprint), None)

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
        last, self._last[worker] = self._last.get(worker), reading
        same = last is not None and last.fingerprint.digest == reading.fingerprint.digest
        lately = began < self._said.get(worker, -_SAY_AGAIN_SECONDS) + _SAY_AGAIN_SECONDS
        if same and lately and reading.reason == "check":
            return
        if last is not None and not same and self._said.get(worker) != last.began:
            self._write(last, None)  # so long these weights stayed, whatever was marked meanwhile
        self._write(reading, None if same else last)

    def _write(self, reading: Reading, before: Reading | None) -> None:
        """Write a reading. `before`: the worker's last reading if its weights differed, else None."""
        self._said[reading.worker] = reading.began
        (known,) = self._observed.timeline.runs([reading.began])
        version, decided = known.version, known.at
        if not self._observed.timeline.unbroken(np.nextafter(reading.began, np.inf), reading.ended):
            version, decided = None, reading.ended  # which is it? no mark can tell
        silently = (
            before is not None
            and before.fingerprint.keys == reading.fingerprint.keys
            and self._observed.timeline.unbroken(before.began, reading.ended)
        )
        unknown = {}
        if silently and before is not None:
            unknown = {
                "moment": before.ended + 1e-6,
                "unless": {"since": micros(before.began), "until": micros(reading.ended)},
            }
        self._recorder.weights(
            version,
            source="worker",
            applied_at=self._observed.wall(reading.began),
            machine=machine(),
            seen=self._observed.seen(reading.began, reading.ended, decided),
            fingerprint=reading.fingerprint,
            worker=reading.worker,
            cache_cleared=self._cleared,
            reason=reading.reason,
            **unknown,  # type: ignore[arg-type]
        )

    def _moments(self, told: Told, began: float, ended: float) -> tuple[float, float]:
        """Return bounds of a worker's time span on the engine's monotonic clock."""
        unsure = 0.0 if _is_ours(told) else _CLOCKS_DIFFER
        shift = self._shift(told)
        return began + shift - unsure, ended + shift + unsure

    def _shift(self, told: Told) -> float:
        """Return the offset from a worker's monotonic clock to the engine's."""
        return 0.0 if _is_ours(told) else told["wall"] - self._observed.clock.offset


def _is_ours(told: Told) -> bool:
    return told.get("machine") is not None and told["machine"] == machine()
