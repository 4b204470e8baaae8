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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.clock import machine
from logprobe.collectors.health import Guard, Health
from logprobe.collectors.recorder.capture import StepTimes
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.routes import NO_ROUTE
from logprobe.collectors.versions import Run, spans_of
from logprobe.collectors.vllm.capture import Sequence
from logprobe.collectors.vllm.config import sampling_document, sampling_settings
from logprobe.collectors.vllm.ids import prompt_hash, sample_id, split_internal, trajectory
from logprobe.collectors.vllm.observed import Observed, micros
from logprobe.collectors.vllm.prompts import PromptSample, prompt_share
from logprobe.collectors.vllm.unwritten import Unwritten
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.fingerprints import Fingerprints
from logprobe.collectors.vllm.weights.loads import READ_WEIGHTS
from logprobe.collectors.vllm.weights.updates import Update

TICK_SECONDS: Final = 0.1
CLOSE_SECONDS: Final = 3.0  # an engine that shuts down is held up by at most this
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


class Emitter:
    """Writer of the records of one engine. Call `start` once, and `close` at the engine's end.

    Attributes:
        observed: data of the engine's hooks.
        recorder: recorder of the engine.
        health: counts of problems in hooks and emitter, forwarded to the recorder.
        executor: function that returns the engine's executor, or None if it is unknown or gone.
    """

    def __init__(self, observed: Observed, recorder: Recorder, exchange: Exchange) -> None:
        self.observed = observed
        self.recorder = recorder
        self.health = Health()
        self.executor: Callable[[], Any] = lambda: None
        self._fingerprints = Fingerprints(exchange, observed, recorder)
        self._prompts = PromptSample(prompt_share(self.health))
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

    def guard(self, where: str) -> Guard:
        """Return the context of plugin code inside a call of vLLM. Its errors are counted and never raised."""
        return Guard(self.health, where)

    def close(self) -> None:
        """Write the remaining data, including the unfinished update, and close the recorder within a time limit.

        Further calls have no effect.
        """
        if self._closing.is_set() or os.getpid() != self._process:
            return
        self._closing.set()
        if (executor := self.executor()) is not None:
            with self.guard("vllm_plugin.last_reading"):
                executor.collective_rpc(READ_WEIGHTS, timeout=CLOSE_SECONDS)
        self.observed.updates.end(time.monotonic())
        self.drain()
        with Guard(self.health, "vllm_plugin.close", cost=False):
            self._write_updates()
            self._write_fingerprints(everything=True)
            self._fingerprints.end()
            self._report_cost()
            self._forward_health(everything=True)
        self.recorder.close(CLOSE_SECONDS)

    def _report_cost(self) -> None:
        details = {
            "hook_calls": self.health.calls,
            "hook_seconds": round(self.health.caller_seconds, 6),
            **self._written,
        }
        self.recorder.report("detached", "the engine ended", details=details)

    def _run(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            self.drain()

    def _tick(self) -> bool:
        """Run one round and return whether more work may be left."""
        with self._one_at_a_time, Guard(self.health, "vllm_plugin.emit", cost=False):
            self._look_at_clock()
            sequences = self.observed.capture.take_finished(_BATCH)
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
        capture = self.observed.capture
        running = [*list(capture.open.values()), *list(capture.finished)]
        left = Unwritten.of([*running, *self._on_their_way()])
        news = left.instead_of(self._unwritten)
        if news is not None:
            self._unwritten = news
            details = {"sequences": news.sequences, "tokens": news.tokens}
            self.recorder.state("unwritten", "upper bound on losses if this process is killed now", details)
        if (news is not None or wrote) and not running and self.recorder.flush(_FLUSH_SECONDS):
            self._handed.clear()
        elif news is not None:
            self.recorder.flush(_FLUSH_SECONDS)

    def _on_their_way(self) -> list[Sequence]:
        """Return the sequences that the recorder has and that may not yet be on disk."""
        while self._handed and self._handed[0][0] < time.monotonic() - _ON_DISK_SECONDS:
            self._handed.popleft()
        return [sequence for _, sequences in self._handed for sequence in sequences]

    def _read_adapters(self) -> None:
        with Guard(self.health, "vllm_plugin.adapters", cost=False):
            self._fingerprints.take_adapters()

    def _look_at_clock(self) -> None:
        """Report a change of the wall clock.

        It has no effect on one machine. A mark of another machine cannot be placed across a jump.
        """
        jump = self.observed.clock.jump()
        if jump:
            self.health.report(
                "clock_jump",
                f"the wall clock was adjusted by {jump:+.1f} s; if marks are made on other machines, weight versions "
                "are unknown until the next one",
            )

    def _write(self, sequences: list[Sequence]) -> None:
        rows: list[Mapping[str, Any]] = []
        for sequence in sequences:
            with Guard(self.health, "vllm_plugin.describe", cost=False):  # one that is not understood costs no other
                rows.append(self._described(sequence))
        if rows:
            columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
            columns["engine_config_id"] = self.observed.engine_config_id
            columns["steps"] = StepTimes(
                columns.pop("times"),
                columns.pop("decisions"),
                machine(),
                micros(self.observed.clock.offset),
                self.observed.clock_set,
                micros(self.observed.started),
            )
            self.recorder.rollout(**columns)
            self._handed.append((time.monotonic(), sequences))
        if len(rows) < len(sequences):
            lost = len(sequences) - len(rows)
            self.health.report("sequences_lost", "sequences of unknown form were dropped", sequences=lost)
        self._written["sequences"] += len(rows)
        self._written["tokens"] += sum(len(row["token_ids"]) for row in rows)
        self._report_missing(sequences)

    def _described(self, sequence: Sequence) -> Mapping[str, Any]:
        """Return the arguments of `Recorder.rollout` for one sequence."""
        adapter, times = sequence.adapter, sequence.times
        hashed = None if sequence.prompt is None else prompt_hash(sequence.prompt)
        if adapter is None:
            runs = self.observed.timeline.runs(times)
        else:
            runs = self.observed.adapters.runs(adapter, times)
            self._fingerprints.write_adapter(adapter.lora_name, runs)
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
        name = sample_id(request_id, index, prefix=self.observed.prefix)
        return f"{name}+{sequence.turn}" if sequence.turn else name  # later turns of a streaming session

    def _report_missing(self, sequences: list[Sequence]) -> None:
        silent = [sequence for sequence in sequences if sequence.missing]
        if silent:
            self.health.report(
                "logprobs_missing",
                "requests did not ask for log-probs, so the engine's log-probs are unknown; "
                "sample with logprobs=0 or set LOGPROBE_RECORD=inject",
                sequences=len(silent),
                tokens=sum(sequence.missing for sequence in silent),
            )
        foreign = [sequence for sequence in sequences if sequence.foreign]
        if foreign:
            self.health.report(
                "foreign_columns",
                "column 0 of the log-probs was not the sampled token; this vLLM version is not supported, its "
                "log-probs are left out",
                severity="error",
                sequences=len(foreign),
                tokens=sum(len(sequence.tokens) for sequence in foreign),
            )

    def _report_counts(self) -> None:
        for problem, count in list(self.observed.capture.counts.items()):
            news = count - self._reported.get(problem, 0)
            if news:
                self._reported[problem] = count
                message = f"vLLM capture: {_PROBLEMS.get(problem, problem)}"
                self.health.report(f"capture_{problem}", message, sequences=news)

    def _forward_health(self, *, everything: bool = False) -> None:
        """Write the counts of the hooks as `health` records of this engine."""
        for problem in self.health.due(everything=everything):
            self.recorder.report(
                problem.event,
                problem.message,
                severity=problem.severity,
                sequences=problem.sequences,
                tokens=problem.tokens,
                details={"count": problem.count},
            )

    def _write_updates(self) -> None:
        while self.observed.updates.closed:
            update = self.observed.updates.closed.popleft()
            self._write_update(update)
            if update.touched_weights or update.resumed_at is not None:
                self._ask("load" if update.calls else "label" if update.labelled else "resume")

    def _ask(self, reason: str) -> None:
        """Request a fingerprint of the weights."""
        with Guard(self.health, "vllm_plugin.fingerprints", cost=False):
            self._fingerprints.ask(reason)

    def _write_fingerprints(self, *, everything: bool = False) -> None:
        with Guard(self.health, "vllm_plugin.fingerprints", cost=False):
            while self.observed.checksums:
                self._fingerprints.write_checksums(self.observed.checksums.popleft())
            self._fingerprints.write(everything=everything)

    def _write_update(self, update: Update) -> None:
        """Write the observed update. For a pause or cache reset alone, marks decide whether it was an update."""
        (known,) = self.observed.timeline.runs([update.closed_at])
        wall = self.observed.wall
        self.recorder.weights(
            known.version,
            source="engine",
            requested_at=wall(update.requested_at),
            started_at=wall(update.started_at),
            applied_at=wall(update.applied_at),
            resumed_at=wall(update.resumed_at),
            pause_mode=update.pause_mode,
            cache_cleared=self._cache_cleared(reset=update.cache_reset),
            tensors=update.tensors,
            machine=machine(),
            seen=self.observed.seen(update.after, update.closed_at, known.at),
            reason=", ".join(sorted(update.calls)) or None,
        )

    def _cache_cleared(self, *, reset: bool | None) -> bool | None:
        """Return whether cached prefixes of old weights were cleared, or None without a prefix cache."""
        return bool(reset) if self.observed.caches_prefixes else None


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
