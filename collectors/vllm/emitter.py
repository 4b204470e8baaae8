"""Emitter: the thread that converts the data of an engine's `Capture` to records.

It passes finished sequences to the `Recorder` in batches, with the engine's own knowledge of their weight versions, and
writes observed weight updates. The monitor adds the marks of trainers. The thread is separate from the engine's,
because it may wait for a file system.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.health import Guard, Health
from logprobe.collectors.recorder.capture import StepTimes
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.routes import NO_ROUTE
from logprobe.collectors.versions import Run, Timeline, spans_of
from logprobe.collectors.vllm.adapters import Adapters
from logprobe.collectors.vllm.capture import Capture, Sequence
from logprobe.collectors.vllm.config import sampling_document, sampling_settings
from logprobe.collectors.vllm.ids import prompt_hash, sample_id, split_internal, trajectory
from logprobe.collectors.vllm.prompts import PromptSample, prompt_share
from logprobe.collectors.vllm.unwritten import Unwritten
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.fingerprints import Checksums, Fingerprints, Sight, micros
from logprobe.collectors.vllm.weights.updates import Update, UpdateObserver

TICK_SECONDS: Final = 0.1
_ON_DISK_SECONDS: Final = 1.5  # the recorder writes once a second
_FLUSH_SECONDS: Final = 1.0  # this thread waits for the disk; the engine does not
_BATCH: Final = 256  # sequences a `Recorder.rollout` call
_PROBLEMS: Final = {
    "lost_steps": "outputs of scheduled steps never arrived",
    "routes_full": "expert routes were dropped: those of unfinished sequences take too much memory",
    "routes_given_up": "expert routes have an unknown form; they are no longer recorded",
    "overflow": "finished sequences were dropped: the emitter could not keep up",
    "given_up": "unfinished sequences were dropped after an error in capture",
}


@dataclass
class Observed:
    """Collected data about one engine, shared by its hooks and its emitter."""

    capture: Capture
    updates: UpdateObserver = field(default_factory=UpdateObserver)
    timeline: Timeline = field(default_factory=Timeline)
    clock: Clock = field(default_factory=Clock)
    started: float = field(default_factory=time.monotonic)  # marks made before belong to an earlier engine
    replica: str | None = None
    prefix: str = ""  # of sample ids
    engine_config_id: str | None = None
    caches_prefixes: bool | None = None
    checksums: deque[Checksums] = field(default_factory=deque)  # that the engine's user asked for

    @property
    def adapters(self) -> Adapters:
        """LoRA adapters of the engine."""
        return self.capture.adapters


class Emitter:
    """Writer of the records of one engine. Call `start` once, and `close` before the recorder's."""

    def __init__(self, observed: Observed, recorder: Recorder, health: Health, exchange: Exchange) -> None:
        self._observed = observed
        self._sight = Sight(observed.clock, observed.started)
        self._fingerprints = Fingerprints(
            exchange,
            observed.timeline,
            observed.adapters,
            observed.clock,
            self._sight,
            caches=observed.caches_prefixes,
        )
        self._recorder = recorder
        self._health = health
        self._prompts = PromptSample(prompt_share(health))
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
        """Start the background thread."""
        self._ask("check")
        self._thread.start()

    def drain(self) -> None:
        """Pass all finished sequences to the recorder now. Any thread may call this."""
        while os.getpid() == self._process and self._tick():
            pass

    def close(self) -> None:
        """Write the remaining data, including the unfinished update, and stop. Further calls have no effect."""
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        self._observed.updates.end(time.monotonic())
        self.drain()
        with Guard(self._health, "vllm_plugin.close", cost=False):
            self._write_updates()
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
        """Run one round and return whether more work may be left."""
        with self._one_at_a_time, Guard(self._health, "vllm_plugin.emit", cost=False):
            self._look_at_clock()
            sequences = self._observed.capture.take_finished(_BATCH)
            self._read_adapters()  # of a step that is over the worker has said what it loaded
            self._write_updates()
            self._write_fingerprints()
            self._write(sequences)
            self._report_counts()
            self._forward_health()
            self._make_durable(wrote=bool(sequences))
            return len(sequences) == _BATCH
        return False

    def _make_durable(self, *, wrote: bool) -> None:
        """Report in advance the loss by a sudden end. An idle engine has nothing to lose."""
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
        """Return the sequences that the recorder has and that may not yet be on disk."""
        while self._handed and self._handed[0][0] < time.monotonic() - _ON_DISK_SECONDS:
            self._handed.popleft()
        return [sequence for _, sequences in self._handed for sequence in sequences]

    def _read_adapters(self) -> None:
        with Guard(self._health, "vllm_plugin.adapters", cost=False):
            self._fingerprints.take_adapters(self._recorder, self._observed.replica)

    def _look_at_clock(self) -> None:
        """Report a change of the wall clock.

        It has no effect on one machine. A mark of another machine cannot be placed across a jump.
        """
        jump = self._observed.clock.jump()
        if jump:
            self._health.report(
                "clock_jump",
                f"the wall clock was adjusted by {jump:+.1f} s; if marks are made on other machines, weight versions "
                "are unknown until the next one",
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
                micros(self._observed.clock.offset),
                None if self._observed.clock.jumped_at is None else micros(self._observed.clock.jumped_at),
                micros(self._observed.started),
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
            "decisions": list(decisions(runs, times)),
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
        """Return the document of `params`. Consecutive equal ones share one object, which the recorder reads once."""
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

    def _write_updates(self) -> None:
        while self._observed.updates.closed:
            update = self._observed.updates.closed.popleft()
            self._write_update(update)
            if update.touched_weights or update.resumed_at is not None:
                self._ask("load" if update.calls else "label" if update.labelled else "resume")

    def _ask(self, reason: str) -> None:
        """Request a fingerprint of the weights."""
        with Guard(self._health, "vllm_plugin.fingerprints", cost=False):
            self._fingerprints.ask(reason)

    def _write_fingerprints(self, *, everything: bool = False) -> None:
        with Guard(self._health, "vllm_plugin.fingerprints", cost=False):
            while self._observed.checksums:
                self._fingerprints.write_checksums(
                    self._observed.checksums.popleft(), self._recorder, self._observed.replica
                )
            self._fingerprints.write(self._recorder, self._observed.replica, everything=everything)

    def _write_update(self, update: Update) -> None:
        """Write the observed update. For a pause or cache reset alone, marks decide whether it was an update."""
        (known,) = self._observed.timeline.runs([update.closed_at])
        wall = self._sight.wall
        self._recorder.weights(
            known.version,
            source="engine",
            replica=self._observed.replica,
            requested_at=wall(update.requested_at),
            started_at=wall(update.started_at),
            applied_at=wall(update.applied_at),
            resumed_at=wall(update.resumed_at),
            pause_mode=update.pause_mode,
            cache_cleared=self._cache_cleared(reset=update.cache_reset),
            tensors=update.tensors,
            machine=machine(),
            seen=self._sight.seen(update.after, update.closed_at, known.at),
            reason=", ".join(sorted(update.calls)) or None,
        )

    def _cache_cleared(self, *, reset: bool | None) -> bool | None:
        """Return whether cached prefixes of old weights were cleared, or None without a prefix cache."""
        return bool(reset) if self._observed.caches_prefixes else None


def _logprobs(sequence: Sequence) -> Any:
    """Return log-probs of a sequence for the recorder. Missing values are None, which becomes null and not NaN."""
    if sequence.foreign:
        return [None] * len(sequence.tokens)
    values = np.frombuffer(sequence.logprobs, dtype=np.float32)
    if not sequence.missing:
        return values
    return [None if np.isnan(value) else float(value) for value in values]


def _routes(sequence: Sequence) -> NDArray[np.uint16] | None:
    """Return fingerprints [tokens, layers], or None if vLLM returned no routes.

    First tokens without routes have `NO_ROUTE`.
    """
    if not sequence.routes:
        return None
    marks = np.frombuffer(sequence.routes, dtype=np.uint16).reshape(-1, sequence.layers)
    unknown = np.full((len(sequence.tokens) - len(marks), sequence.layers), NO_ROUTE, np.uint16)
    return np.concatenate([unknown, marks]) if len(unknown) else marks


def decisions(runs: list[Run], times: array[float]) -> Iterator[tuple[int, int | None, int, int]]:
    """Yield a `DECISION` for each run of tokens: its end, its decision time, and its first and last step."""
    start = 0
    for run in runs:
        yield run.end, None if run.at is None else micros(run.at), micros(times[start]), micros(run.last)
        start = run.end
