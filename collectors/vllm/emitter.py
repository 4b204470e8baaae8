"""The thread that turns what an engine's `Capture` collected into records.

It reads the marks that trainers made, gives every token its weight version, hands finished sequences to the `Recorder` in
batches and writes observed weight updates. A second thread of its own, because reading marks may wait for a file system and
the engine must not.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.health import Guard, Health
from logprobe.collectors.recorder import Recorder
from logprobe.collectors.routes import NO_ROUTE
from logprobe.collectors.versions import Mark, MarkFile, Timeline
from logprobe.collectors.vllm.capture import Capture, Sequence
from logprobe.collectors.vllm.config import sampling_document, sampling_settings
from logprobe.collectors.vllm.ids import prompt_hash, sample_id, split_internal
from logprobe.collectors.vllm.updates import Update, UpdateObserver

TICK_SECONDS: Final = 0.1
_BATCH: Final = 256  # sequences a `Recorder.rollout` call
_PROBLEMS: Final = {
    "lost_steps": "steps were scheduled whose output never came",
    "routes_full": "routes of experts were dropped, those of unfinished sequences take too much memory",
    "routes_given_up": "routes of experts are not as the plugin knows them; they are not recorded any more",
    "overflow": "finished sequences were dropped, the emitter could not keep up",
    "given_up": "unfinished sequences were dropped after an error in capture",
}


@dataclass
class Observed:
    """Everything collected about one engine, shared by its hooks and its emitter."""

    capture: Capture
    updates: UpdateObserver = field(default_factory=UpdateObserver)
    timeline: Timeline = field(default_factory=Timeline)
    started: float = field(default_factory=time.time)  # marks made before belong to an earlier engine
    replica: str | None = None
    prefix: str = ""  # of sample ids
    engine_config_id: str | None = None
    caches_prefixes: bool | None = None


class Emitter:
    """Writes the records of one engine. `start` it once; `close` it before the recorder."""

    def __init__(self, observed: Observed, recorder: Recorder, marks: MarkFile, health: Health) -> None:
        self._observed = observed
        self._recorder = recorder
        self._marks = marks
        self._health = health
        self._unplaced: list[Mark] = []  # marks whose next step has not come
        self._marked: dict[str, Mark] = {}  # the last mark of each version
        self._reported: dict[str, int] = {}
        self._written = {"sequences": 0, "tokens": 0}
        self._last_sampling: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._process = os.getpid()  # a forked child must not write what its parent will
        self._one_at_a_time = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logprobe-vllm", daemon=True)

    def start(self) -> None:
        """Begin to write in the background."""
        self._thread.start()

    def drain(self) -> None:
        """Hand everything that is finished to the recorder now; any thread may call it."""
        while os.getpid() == self._process and self._tick():
            pass

    def close(self) -> None:
        """Write what is left, the unfinished update included, and stop. Later calls do nothing."""
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        self._observed.updates.end(time.time())
        self.drain()
        with Guard(self._health, "vllm_plugin.close", cost=False):
            self._place_marks(float("inf"), [])
            self._report_cost()
            self._forward_health(everything=True)

    def _report_cost(self) -> None:
        details = {
            "hook_calls": self._health.calls,
            "hook_seconds": round(self._health.caller_seconds, 6),
            **self._written,
        }
        self._recorder.report("detached", "the engine ended", details=details)

    def _run(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            self.drain()

    def _tick(self) -> bool:
        """One round; whether there may be more to do."""
        with self._one_at_a_time, Guard(self._health, "vllm_plugin.emit", cost=False):
            newest_step = self._observed.capture.last_scheduled
            self._read_marks()
            # After the marks: whatever finished by now was scheduled before, so its marks have been read.
            sequences = self._observed.capture.take_finished(_BATCH)
            self._place_marks(newest_step, self._write_updates())
            self._write(sequences)
            self._report_counts()
            self._forward_health()
            return len(sequences) == _BATCH
        return False

    def _read_marks(self) -> None:
        try:
            marks = self._marks.read_new()
        except OSError as error:
            self._health.report("marks_unreadable", f"weight versions are unknown: {error}")
            return
        for mark in marks:
            if mark.applied_at >= self._observed.started and mark.replica in (None, self._observed.replica):
                self._observed.timeline.set(mark.applied_at, mark.version)
                self._unplaced.append(mark)
                self._marked[mark.version] = mark

    def _write(self, sequences: list[Sequence]) -> None:
        rows: list[dict[str, Any]] = []
        for sequence in sequences:
            with Guard(self._health, "vllm_plugin.describe", cost=False):  # one that is not understood costs no other
                rows.append(self._described(sequence))
        if rows:
            columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
            columns["engine_config_id"] = self._observed.engine_config_id
            self._recorder.rollout(**columns)  # the replica is the recorder's own
        if len(rows) < len(sequences):
            lost = len(sequences) - len(rows)
            self._health.report("sequences_lost", "sequences were not understood and dropped", sequences=lost)
        self._written["sequences"] += len(rows)
        self._written["tokens"] += sum(len(row["token_ids"]) for row in rows)
        self._report_missing(sequences)

    def _described(self, sequence: Sequence) -> dict[str, Any]:
        """Arguments of `Recorder.rollout` for one sequence."""
        return {
            "sample_ids": self._sample_id(sequence),
            "request_ids": sequence.internal_id,
            "token_ids": np.frombuffer(sequence.tokens, dtype=np.int32),
            "logprobs": _logprobs(sequence),
            "weight_version": self._observed.timeline.spans(sequence.times),
            "cached_prefix_tokens": sequence.cached,
            "prompt_lengths": sequence.prompt_length,
            "prompt_hashes": None if sequence.prompt is None else prompt_hash(sequence.prompt),
            "finish_reasons": sequence.finish_reason,
            "sampling": self._sampling(sequence.params),
            "routes": _routes(sequence),
        }

    def _sampling(self, params: Any) -> dict[str, Any]:
        """The document of `params`; one object for equal ones in a row, which the recorder then reads once."""
        settings = sampling_settings(params)
        if settings != self._last_sampling[0]:
            self._last_sampling = settings, sampling_document(params)
        return self._last_sampling[1]

    def _sample_id(self, sequence: Sequence) -> str:
        request_id, index = split_internal(sequence.internal_id, sequence.external_id)
        name = sample_id(request_id, index, prefix=self._observed.prefix)
        return f"{name}+{sequence.turn}" if sequence.turn else name  # later turns of a streaming session

    def _report_missing(self, sequences: list[Sequence]) -> None:
        silent = [sequence for sequence in sequences if sequence.missing]
        if silent:
            self._health.report(
                "logprobs_missing",
                "requests did not ask for log-probs, so what the engine sampled with is unknown; "
                "sample with logprobs=0 or set LOGPROBE_VLLM_INJECT=1",
                sequences=len(silent),
                tokens=sum(sequence.missing for sequence in silent),
            )
        foreign = [sequence for sequence in sequences if sequence.foreign]
        if foreign:
            self._health.report(
                "foreign_columns",
                "column 0 of the log-probs was not the sampled token; this vLLM is not understood, its log-probs are left out",
                severity="error",
                sequences=len(foreign),
                tokens=sum(len(sequence.tokens) for sequence in foreign),
            )

    def _report_counts(self) -> None:
        for problem, count in list(self._observed.capture.counts.items()):
            news = count - self._reported.get(problem, 0)
            if news:
                self._reported[problem] = count
                message = f"vLLM capture: {_PROBLEMS.get(problem, problem)}"
                self._health.report(f"capture_{problem}", message, sequences=news)

    def _forward_health(self, *, everything: bool = False) -> None:
        """What the hooks counted becomes `health` records of this engine."""
        for problem in self._health.due(everything=everything):
            self._recorder.report(
                problem.event,
                problem.message,
                severity=problem.severity,
                sequences=problem.sequences,
                tokens=problem.tokens,
                details={"count": problem.count},
            )

    def _write_updates(self) -> list[Update]:
        updates = []
        while self._observed.updates.closed:
            update = self._observed.updates.closed.popleft()
            updates.append(update)
            self._write_update(update)
        return updates

    def _write_update(self, update: Update) -> None:
        timeline = self._observed.timeline
        version = timeline.at(update.closed_at)
        if not update.touched_weights and version == timeline.at(update.after):
            what = "generation was paused" if update.pause_mode else "the prefix cache was reset"
            self._health.report("no_update", f"{what} without new weights", severity="info")
            return
        mark = self._marked.get(version or "")
        self._recorder.weights(
            version,
            step=None if mark is None else mark.step,
            source="engine",
            replica=self._observed.replica,
            requested_at=_moment(update.requested_at),
            started_at=_moment(update.started_at),
            applied_at=_moment(
                mark.applied_at if update.applied_at is None and mark is not None else update.applied_at
            ),
            resumed_at=_moment(update.resumed_at),
            pause_mode=update.pause_mode,
            cache_cleared=self._cache_cleared(reset=update.cache_reset),
            tensors=update.tensors,
        )

    def _place_marks(self, newest_step: float, updates: list[Update]) -> None:
        """A mark outside of every observed update is an update of its own, of which only the version is known."""
        waiting = []
        for mark in self._unplaced:
            if any(update.encloses(mark.applied_at) for update in updates):
                continue
            update = self._observed.updates.open
            if mark.applied_at > newest_step or (update is not None and update.after < mark.applied_at):
                waiting.append(mark)
            else:
                self._write_mark(mark)
        self._unplaced = waiting

    def _write_mark(self, mark: Mark) -> None:
        timeline = self._observed.timeline
        before = timeline.at(np.nextafter(mark.applied_at, 0))
        if before == mark.version:
            return
        # The first version names weights that were there before; whether their loading cleared a cache is not known.
        cleared = None if before is None else self._cache_cleared(reset=None)
        self._recorder.weights(
            mark.version,
            step=mark.step,
            source="engine",
            replica=self._observed.replica,
            applied_at=_moment(mark.applied_at),
            cache_cleared=cleared,
        )

    def _cache_cleared(self, *, reset: bool | None) -> bool | None:
        """Whether cached prefixes of old weights are gone; None without a prefix cache, where there are none."""
        return bool(reset) if self._observed.caches_prefixes else None


def _logprobs(sequence: Sequence) -> Any:
    """Log-probs of a sequence for the recorder; None, which is null and not NaN, where the engine gave none."""
    if sequence.foreign:
        return [None] * len(sequence.tokens)
    values = np.frombuffer(sequence.logprobs, dtype=np.float32)
    if not sequence.missing:
        return values
    return [None if np.isnan(value) else float(value) for value in values]


def _routes(sequence: Sequence) -> NDArray[np.uint16] | None:
    """Fingerprints [tokens, layers]; `NO_ROUTE` for the first tokens where vLLM returned none; None: it returned none at all."""
    if not sequence.routes:
        return None
    marks = np.frombuffer(sequence.routes, dtype=np.uint16).reshape(-1, sequence.layers)
    unknown = np.full((len(sequence.tokens) - len(marks), sequence.layers), NO_ROUTE, np.uint16)
    return np.concatenate([unknown, marks]) if len(unknown) else marks


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
