"""The thread that turns what an engine's `Capture` collected into records.

It reads the marks that trainers made, gives every token its weight version, hands finished sequences to the `Recorder`
in batches and writes observed weight updates. A second thread, because reading marks may wait for a file system and the
engine must not.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.health import Guard, Health
from logprobe.collectors.recorder.capture import StepTimes
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.routes import NO_ROUTE
from logprobe.collectors.versions import Mark, MarkFile, Run, Timeline, spans_of
from logprobe.collectors.vllm.adapters import Adapters
from logprobe.collectors.vllm.capture import Capture, Sequence
from logprobe.collectors.vllm.config import sampling_document, sampling_settings
from logprobe.collectors.vllm.ids import prompt_hash, sample_id, split_internal, trajectory
from logprobe.collectors.vllm.prompts import PromptSample, prompt_share
from logprobe.collectors.vllm.unwritten import Unwritten
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.fingerprints import Fingerprints
from logprobe.collectors.vllm.weights.updates import Update, UpdateObserver

TICK_SECONDS: Final = 0.1
_ON_DISK_SECONDS: Final = 1.5  # the recorder writes once a second
_FLUSH_SECONDS: Final = 1.0  # this thread waits for the disk; the engine does not
_FRESH_SECONDS: Final = 5.0  # a mark is read at most so long after it was made, where clocks agree
_NEVER: Final = (1 << 63) - 1  # no mark is made later
_BATCH: Final = 256  # sequences a `Recorder.rollout` call
_PROBLEMS: Final = {
    "lost_steps": "outputs of scheduled steps never arrived",
    "routes_full": "expert routes were dropped: those of unfinished sequences take too much memory",
    "routes_given_up": "expert routes have an unknown form; they are no longer recorded",
    "overflow": "finished sequences were dropped: the emitter could not keep up",
    "given_up": "unfinished sequences were dropped after an error in capture",
}


@dataclass(frozen=True, slots=True)
class OurMark:
    """A mark as this engine reads it; `moment` is on its monotonic clock."""

    version: str
    applied_at: float
    step: int | None
    replica: str | None
    adapter: str | None
    moment: float


@dataclass
class Observed:
    """Everything collected about one engine, shared by its hooks and its emitter."""

    capture: Capture
    updates: UpdateObserver = field(default_factory=UpdateObserver)
    timeline: Timeline = field(default_factory=Timeline)
    clock: Clock = field(default_factory=Clock)
    started: float = field(default_factory=time.monotonic)  # marks made before belong to an earlier engine
    replica: str | None = None
    names: frozenset[str | None] = frozenset(
        {None}
    )  # by which marks call it; a group of replicas shares `LOGPROBE_REPLICA`
    prefix: str = ""  # of sample ids
    engine_config_id: str | None = None
    caches_prefixes: bool | None = None

    @property
    def adapters(self) -> Adapters:
        """The engine's LoRA adapters."""
        return self.capture.adapters


class Emitter:
    """Writes the records of one engine. `start` it once; `close` it before the recorder."""

    def __init__(
        self, observed: Observed, recorder: Recorder, marks: MarkFile, health: Health, exchange: Exchange
    ) -> None:
        self._observed = observed
        self._fingerprints = Fingerprints(exchange, observed.timeline, observed.adapters, observed.clock)
        self._recorder = recorder
        self._marks = marks
        self._health = health
        self._prompts = PromptSample(prompt_share(health))
        self._unplaced: list[OurMark] = []  # marks whose next step has not come
        self._marked: dict[str, OurMark] = {}  # the last mark of each version
        self._foreign_marks = False  # some were made on another machine
        self._unwritten = Unwritten()  # as it was last said
        self._handed: deque[tuple[float, list[Sequence]]] = deque()  # to the recorder, and when
        self._reported: dict[str, int] = {}
        self._written = {"sequences": 0, "tokens": 0}
        self._last_sampling: tuple[tuple[Any, ...], dict[str, object]] = ((), {})
        self._process = os.getpid()  # a forked child must not write what its parent will
        self._one_at_a_time = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logprobe-vllm", daemon=True)

    def start(self) -> None:
        """Begin to write in the background."""
        self._ask("check")
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
        self._observed.updates.end(time.monotonic())
        self.drain()
        with Guard(self._health, "vllm_plugin.close", cost=False):
            self._place_marks(float("inf"), [])
            self._write_fingerprints(everything=True)
            self._fingerprints.end()
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
        """Do one round; return whether there may be more to do."""
        with self._one_at_a_time, Guard(self._health, "vllm_plugin.emit", cost=False):
            self._look_at_clock()
            newest_step = self._observed.capture.last_scheduled
            # Before the marks: whatever has finished by now was scheduled before, so every mark about it is read below.
            sequences = self._observed.capture.take_finished(_BATCH)
            self._read_marks()
            self._read_adapters()  # of a step that is over the worker has said what it loaded
            self._place_marks(newest_step, self._write_updates())
            self._write_fingerprints()
            self._write(sequences)
            self._report_counts()
            self._forward_health()
            self._make_durable(wrote=bool(sequences))
            return len(sequences) == _BATCH
        return False

    def _make_durable(self, *, wrote: bool) -> None:
        """Say what a sudden end would cost, before it; an engine that has nothing to do leaves nothing behind that
        could be lost."""
        capture = self._observed.capture
        running = [*list(capture.open.values()), *list(capture.finished)]
        left = Unwritten.of([*running, *self._on_their_way()])
        news = left.instead_of(self._unwritten)
        if news is not None:
            self._unwritten = news
            details = {"sequences": news.sequences, "tokens": news.tokens}
            self._recorder.state("unwritten", "upper bound on losses if this process is killed now", details)
        if (news is not None or wrote) and not running and self._recorder.flush(_FLUSH_SECONDS):
            self._handed.clear()
        elif news is not None:
            self._recorder.flush(_FLUSH_SECONDS)

    def _on_their_way(self) -> list[Sequence]:
        """Return the sequences that the recorder has and the disk may not have yet."""
        while self._handed and self._handed[0][0] < time.monotonic() - _ON_DISK_SECONDS:
            self._handed.popleft()
        return [sequence for _, sequences in self._handed for sequence in sequences]

    def _read_marks(self) -> None:
        try:
            marks = self._marks.read_new()
        except OSError as error:
            self._health.report("marks_unreadable", f"weight versions are unknown: {error}")
            return
        for mark in map(self._on_our_clock, marks):
            if mark.moment >= self._observed.started and mark.replica in self._observed.names:
                self._take_mark(mark)

    def _read_adapters(self) -> None:
        with Guard(self._health, "vllm_plugin.adapters", cost=False):
            self._fingerprints.take_adapters(self._recorder, self._observed.replica)

    def _take_mark(self, mark: OurMark) -> None:
        if mark.adapter is not None:
            self._observed.adapters.timeline(mark.adapter).set(mark.moment, mark.version)
            return
        self._observed.timeline.set(mark.moment, mark.version)
        self._fingerprints.marked(mark.moment)
        self._ask("mark")
        self._unplaced.append(mark)
        self._marked[mark.version] = mark

    def _on_our_clock(self, mark: Mark) -> OurMark:
        """Place a mark of another machine by the wall clocks. Once ours was set, only one that was just made can be."""
        clock, moment, read = self._observed.clock, mark.moment, time.monotonic()
        if moment is None or mark.machine is None or mark.machine != machine():
            moment = clock.moment(mark.applied_at)
            self._foreign_marks = True
            if clock.jumped_at is not None and not max(clock.jumped_at, read - _FRESH_SECONDS) <= moment <= read:
                self._health.report(
                    "mark_misplaced",
                    f"the mark of version {mark.version} was made {read - moment:+.1f} s ago by a clock that was "
                    "adjusted; it is not used",
                )
                moment = -math.inf
        return OurMark(mark.version, mark.applied_at, mark.step, mark.replica, mark.adapter, moment)

    def _look_at_clock(self) -> None:
        """Look whether the wall clock was set. On one machine nothing depends on it; marks of other machines cannot be
        placed across a jump."""
        jump = self._observed.clock.jump()
        if not jump:
            return
        unknown = self._foreign_marks
        if unknown:
            self._observed.timeline.set(time.monotonic(), None)
            self._observed.adapters.weights_changed(time.monotonic())
        self._health.report(
            "clock_jump",
            f"the wall clock was adjusted by {jump:+.1f} s; "
            + (
                "weight versions are unknown until the next mark"
                if unknown
                else "weight versions do not depend on it: their marks are made on this machine"
            ),
        )

    def _write(self, sequences: list[Sequence]) -> None:
        rows: list[Mapping[str, Any]] = []
        for sequence in sequences:
            with Guard(self._health, "vllm_plugin.describe", cost=False):  # one that is not understood costs no other
                rows.append(self._described(sequence))
        if rows:
            columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
            columns["engine_config_id"] = self._observed.engine_config_id
            columns["steps"] = StepTimes(
                columns.pop("times"),
                columns.pop("decisions"),
                machine(),
                _micros(self._observed.clock.offset),
                _micros(self._observed.started),
            )
            self._recorder.rollout(**columns)  # the replica is the recorder's own
            self._handed.append((time.monotonic(), sequences))
        if len(rows) < len(sequences):
            lost = len(sequences) - len(rows)
            self._health.report("sequences_lost", "sequences of unknown form were dropped", sequences=lost)
        self._written["sequences"] += len(rows)
        self._written["tokens"] += sum(len(row["token_ids"]) for row in rows)
        self._report_missing(sequences)

    def _described(self, sequence: Sequence) -> Mapping[str, Any]:
        """Return the arguments of `Recorder.rollout` for one sequence."""
        adapter, times = sequence.adapter, sequence.times
        hashed = None if sequence.prompt is None else prompt_hash(sequence.prompt)
        if adapter is None:
            runs = self._observed.timeline.runs(times)
        else:
            runs = self._observed.adapters.runs(adapter, times)
            self._fingerprints.write_adapter(adapter.lora_name, runs, self._recorder, self._observed.replica)
        return {
            "sample_ids": self._sample_id(sequence),
            "request_ids": sequence.internal_id,
            "trajectories": trajectory(sequence.params, sequence.internal_id, sequence.external_id),
            "token_ids": np.frombuffer(sequence.tokens, dtype=np.int32),
            "logprobs": _logprobs(sequence),
            "weight_version": spans_of(runs),
            "decisions": [_decided(run) for run in runs],
            "times": np.rint(np.frombuffer(times) * 1e6).astype(np.int64),
            "adapters": None if adapter is None else adapter.lora_name,
            "adapter_ids": None if adapter is None else adapter.lora_int_id,
            "cached_prefix_tokens": sequence.cached,
            "prompt_lengths": sequence.prompt_length,
            "prompt_hashes": hashed,
            "prompt_token_ids": None if hashed is None else self._prompts.ids(sequence.prompt or (), hashed),
            "finish_reasons": sequence.finish_reason,
            "sampling": self._sampling(sequence.params),
            "routes": _routes(sequence),
        }

    def _sampling(self, params: Any) -> dict[str, object]:
        """Return the document of `params`; one object for equal ones in a row, which the recorder then reads once."""
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
                "requests did not ask for log-probs, so the engine's log-probs are unknown; "
                "sample with logprobs=0 or set LOGPROBE_RECORD=inject",
                sequences=len(silent),
                tokens=sum(sequence.missing for sequence in silent),
            )
        foreign = [sequence for sequence in sequences if sequence.foreign]
        if foreign:
            self._health.report(
                "foreign_columns",
                "column 0 of the log-probs was not the sampled token; this vLLM version is not supported, its "
                "log-probs are left out",
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
        """Write the counts of the hooks as `health` records of this engine."""
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
            if update.touched_weights or update.resumed_at is not None:
                self._ask("load" if update.calls else "mark" if update.labelled else "resume")
        return updates

    def _ask(self, reason: str) -> None:
        """Have the weights' fingerprint taken."""
        with Guard(self._health, "vllm_plugin.fingerprints", cost=False):
            self._fingerprints.ask(reason)

    def _write_fingerprints(self, *, everything: bool = False) -> None:
        with Guard(self._health, "vllm_plugin.fingerprints", cost=False):
            self._fingerprints.write(self._recorder, self._health, self._observed.replica, everything=everything)

    def _write_update(self, update: Update) -> None:
        timeline = self._observed.timeline
        version = timeline.at(update.closed_at)
        if not update.touched_weights and version == timeline.at(update.after):
            event = "generation was paused" if update.pause_mode else "the prefix cache was reset"
            self._health.report("no_update", f"{event} without new weights", severity="info")
            return
        if version is None and update.calls:
            self._report_unknown(update)
        mark = self._marked.get(version or "")
        self._recorder.weights(
            version,
            step=None if mark is None else mark.step,
            source="engine",
            replica=self._observed.replica,
            requested_at=self._wall(update.requested_at),
            started_at=self._wall(update.started_at),
            applied_at=self._wall(mark.moment if update.applied_at is None and mark is not None else update.applied_at),
            resumed_at=self._wall(update.resumed_at),
            pause_mode=update.pause_mode,
            cache_cleared=self._cache_cleared(reset=update.cache_reset),
            tensors=update.tensors,
        )

    def _report_unknown(self, update: Update) -> None:
        calls = ", ".join(sorted(update.calls))
        self._health.report(
            "weights_unknown",
            f"{calls} may have changed the weights, so their version is unknown: call "
            "logprobe.collectors.weights.mark(version) after it, "
            "or list it in LOGPROBE_RECORD=harmless=… if it leaves them unchanged",
        )

    def _place_marks(self, newest_step: float, updates: list[Update]) -> None:
        """Write a mark outside of every observed update as its own update, of which only the version is known."""
        waiting = []
        for mark in self._unplaced:
            if any(update.encloses(mark.moment) for update in updates):
                continue
            update = self._observed.updates.open
            if mark.moment > newest_step or (update is not None and update.after < mark.moment):
                waiting.append(mark)
            else:
                self._write_mark(mark)
        self._unplaced = waiting

    def _write_mark(self, mark: OurMark) -> None:
        timeline = self._observed.timeline
        before = timeline.at(np.nextafter(mark.moment, -math.inf))
        if before == mark.version:
            return
        # The first version names weights that were there before; whether their loading cleared a cache is not known.
        cleared = None if before is None else self._cache_cleared(reset=None)
        self._recorder.weights(
            mark.version,
            step=mark.step,
            source="engine",
            replica=self._observed.replica,
            applied_at=self._wall(mark.moment),
            cache_cleared=cleared,
        )

    def _wall(self, moment: float | None) -> datetime | None:
        return None if moment is None else datetime.fromtimestamp(self._observed.clock.wall(moment), UTC)

    def _cache_cleared(self, *, reset: bool | None) -> bool | None:
        """Return whether cached prefixes of old weights are gone; None without a prefix cache, where there are none."""
        return bool(reset) if self._observed.caches_prefixes else None


def _logprobs(sequence: Sequence) -> Any:
    """Return log-probs of a sequence for the recorder; None, which is null and not NaN, where the engine gave none."""
    if sequence.foreign:
        return [None] * len(sequence.tokens)
    values = np.frombuffer(sequence.logprobs, dtype=np.float32)
    if not sequence.missing:
        return values
    return [None if np.isnan(value) else float(value) for value in values]


def _routes(sequence: Sequence) -> NDArray[np.uint16] | None:
    """Return fingerprints [tokens, layers], with `NO_ROUTE` for the first tokens if vLLM returned none for them, or
    None if it returned none at all."""
    if not sequence.routes:
        return None
    marks = np.frombuffer(sequence.routes, dtype=np.uint16).reshape(-1, sequence.layers)
    unknown = np.full((len(sequence.tokens) - len(marks), sequence.layers), NO_ROUTE, np.uint16)
    return np.concatenate([unknown, marks]) if len(unknown) else marks


def _decided(run: Run) -> tuple[int, int | None, int]:
    at = run.at
    if at is None or at == -math.inf:
        return run.end, None, _micros(run.last)
    return run.end, _NEVER if at == math.inf else _micros(at), _micros(run.last)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
