"""`Recorder`: API by which a trainer or an engine records its log-probs.

The host's thread checks shapes and copies into pooled memory. A daemon thread converts, writes and reduces. A call
never waits for that thread and never raises. Dropped data is counted in `Recorder.health` and reported in `health`
records. Only construction raises.
"""

from __future__ import annotations

import os
import time as clock
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from logprobe.collectors import routes as expert_routes
from logprobe.collectors.fingerprint import Fingerprint, rounding
from logprobe.collectors.health import LOGGER, Guard, RecorderHealth
from logprobe.collectors.recorder import records
from logprobe.collectors.recorder.arrays import text
from logprobe.collectors.recorder.capture import Call, Captured, Part, StepTimes
from logprobe.collectors.recorder.documents import canonical_json, fingerprint
from logprobe.collectors.recorder.runtime import Runtime
from logprobe.collectors.recorder.settings import Settings
from logprobe.collectors.spool.schema import SEEN, UNLESS

CHECKPOINT: Final = "checkpoint"  # kind of the documents that name saved weights; read by `incident_checkpoints` and `proof_checkpoints`
DEFAULT_QUEUE_BYTES: Final = 256 << 20


class Recorder:
    """Recorder of the data that one process of a run sees, into the spool of a data directory.

    It is safe to use from several threads, to fork and to pickle. A forked child is a separate writer. A pickled copy
    is a new recorder with the same settings. Several recorders, processes and machines may write the same run.

    Memory is bounded by `queue_bytes` plus three times the largest call plus 48 MiB for pending segments and
    statistics.

    Args:
        home: data directory, created if missing, or the address of a bucket, such as ``s3://bucket/team``. Default:
            environment variable ``LOGPROBE_HOME``.
        run: name of the training run. Default: ``LOGPROBE_RUN``.
        rank: rank of this process in the trainer. Default: ``RANK`` if set.
        replica: name of this engine, if there are several.
        component: kind of this process: "trainer", "vllm", …
        flush_interval: maximum time in seconds until recorded data is on disk. Default: 1, and 5 for a bucket.
        segment_tokens: tokens per spool segment, up to three times as many on a slow disk.
        queue_bytes: memory limit for calls not yet written. Beyond half of it, training calls are reduced to
            statistics.
        raw_fraction: share of the sequences, chosen by sample id, whose raw tokens are written. The recorder's thread
            reduces all others that carry both log-probs to statistics. Default: the option ``raw`` of
            ``LOGPROBE_RECORD``, else 1.
        worst_sequences: number of sequences per step with the largest mismatch that keep their raw tokens regardless of
            the fraction.

    Raises:
        ConfigurationError: an argument is missing or invalid.
    """

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        run: str | None = None,
        *,
        rank: int | None = None,
        replica: str | None = None,
        component: str = "trainer",
        flush_interval: float | None = None,
        segment_tokens: int = 131_072,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        raw_fraction: float | None = None,
        worst_sequences: int = 4,
    ) -> None:
        self._settings = Settings.resolve(
            home=home,
            run=run,
            rank=rank,
            replica=replica,
            component=component,
            flush_interval=flush_interval,
            segment_tokens=segment_tokens,
            queue_bytes=queue_bytes,
            raw_fraction=raw_fraction,
            worst_sequences=worst_sequences,
        )
        self._runtime = Runtime(self._settings)
        self._fingerprint: Fingerprint | None = None  # of the trainer's last version
        self._trained = False
        health = self._runtime.call_queue.health
        with Guard(health, "start", cost=False) as guard:  # without a thread to spare each call tries again
            self._runtime.start()
        if guard.failed:
            LOGGER.error("nothing is recorded for now: %s", self.health["last_error"])
        weakref.finalize(self, self._runtime.abandon).atexit = False

    def training(
        self,
        *,
        step: int,
        sample_ids: Any,
        token_ids: Any,
        trainer_logprobs: Any,
        rollout_logprobs: Any = None,
        mask: Any = None,
        current_logprobs: Any = None,
        reference_logprobs: Any = None,
        teacher_logprobs: Any = None,
        entropy: Any = None,
        advantages: Any = None,
        rewards: Any = None,
        weight_version: Any = None,
        rollout_versions: Any = None,
        prompt_ids: Any = None,
        tags: Mapping[str, object] | Sequence[Mapping[str, object] | None] | None = None,
        routes: Any = None,
        cu_seqlens: Any = None,
    ) -> bool:
        """Record the trainer's data of a batch of sequences.

        Arrays are numpy arrays or torch tensors on any device. Tensors on a GPU are copied on a side stream. There are
        three
        layouts: padded [batch, time] with a mask, packed [tokens] with `cu_seqlens`, or lists of 1-D arrays. All arrays
        with one value per token have the layout of `token_ids`. The caller may change them after this call.

        Padded rows are trimmed to the first … last token under the mask. A row without any is recorded as an empty
        sequence.

        Args:
            step: optimizer step that trains on these tokens.
            sample_ids: name per sequence, unique in the run, which joins it with its rollout record. A sequence sampled
                in several engine requests (resumed after an interruption, or turns around a tool call) has a tuple of
                their names, in order.
            token_ids: whole numbers below 2³¹.
            trainer_logprobs: t, the trainer's log-probs before the update ("old"). Stored as float32.
            rollout_logprobs: r, the engine's log-probs as the trainer received them, or None to join the rollout
                records later.
            mask: non-zero for tokens that the policy sampled and trains on. Required for padded arrays.
            current_logprobs: c, the trainer's current log-probs, if available.
            reference_logprobs: log-probs of the reference policy of a KL term, if there is one, for the pair
                `reference`.
            teacher_logprobs: log-probs of the teacher of an on-policy distillation, for the pair `teacher`.
            entropy: nats per token.
            advantages: advantage per token or per sequence.
            rewards: reward per sequence.
            weight_version: version of the trainer's weights that computed `trainer_logprobs`, one or one per sequence.
            rollout_versions: the trainer's knowledge of the weights that sampled. It is a label, one per sequence, or a
                number per token in the layout of `token_ids` (negative: unknown). Alternatively it is a list per
                sequence of labels or of spans ``[(start, end, version), …]`` in tokens under the mask. It completes the
                engine's records. On contradiction the version is unknown and counted.
            prompt_ids: name of the prompt per sequence. Samples of one prompt form a group.
            tags: environment, dataset, …, as one dictionary or one per sequence.
            routes: expert ids of a mixture of experts, chosen by each layer at the position that predicted the token
                (shifted like the logits). The layout is that of `token_ids` followed by [layers, experts per token].
                The result of `logprobe.collectors.routes.fingerprints` is also accepted. Ids of one byte are the
                cheapest to copy. Two bytes per layer are stored. A call that is reduced to statistics loses its routes.
            cu_seqlens: [sequences + 1] starts of packed sequences, as in flash attention.

        Returns:
            True if the call was accepted. Otherwise False, counted in `health` with the reason.
        """
        runtime = self._runtime
        with Guard(runtime.call_queue.health, "training", step):
            call = Call("training", token_ids=token_ids, sample_ids=sample_ids, cu_seqlens=cu_seqlens)
            call.step = records.whole_number("step", step)
            call.parts_of_sequences()
            call.require("trainer_logprobs", trainer_logprobs)
            call.tokens_of("rollout_logprobs", rollout_logprobs)
            call.mask(mask)
            call.tokens_of("current_logprobs", current_logprobs)
            call.tokens_of("reference_logprobs", reference_logprobs)
            call.tokens_of("teacher_logprobs", teacher_logprobs)
            call.tokens_of("entropy", entropy)
            call.tokens_or_numbers("advantages", advantages)
            call.numbers("rewards", rewards)
            call.labels("weight_version", weight_version)
            call.versions("rollout_versions", rollout_versions)
            call.labels("prompt_ids", prompt_ids)
            call.mappings("tags", tags)
            expert_routes.add_to(call, routes)
            self._trained = True
            return runtime.offer(call)
        return False

    def rollout(
        self,
        *,
        sample_ids: Any,
        token_ids: Any,
        logprobs: Any,
        weight_version: Any = None,
        cached_prefix_tokens: Any = None,
        prompt_lengths: Any = None,
        prompt_hashes: Any = None,
        prompt_token_ids: Any = None,
        prompt_ids: Any = None,
        finish_reasons: Any = None,
        sampling: Any = None,
        engine_config_id: str | None = None,
        request_ids: Any = None,
        trajectories: Any = None,
        adapters: Any = None,
        adapter_ids: Any = None,
        steps: StepTimes | None = None,
        replica: str | None = None,
        routes: Any = None,
        lengths: Any = None,
        cu_seqlens: Any = None,
    ) -> bool:
        """Record the engine's data of finished sequences: the sampled tokens, without the prompt.

        Layouts are those of `training`. Padded [batch, time] arrays need `lengths`.

        Args:
            sample_ids: name per sequence, unique in the run.
            token_ids: sampled tokens.
            logprobs: r, the engine's log-probability of each token. A None in a list marks an unreported value.
            weight_version: version for all, one per sequence, or spans ``[(start, end, version), …]`` per sequence in
                sampled tokens, end excluded, or None if unknown.
            cached_prefix_tokens: prompt tokens from the prefix cache, one per sequence.
            prompt_lengths: tokens of the prompt, one per sequence.
            prompt_hashes: text per sequence.
            prompt_token_ids: integer array per sequence, or None for a prompt that is not stored. Once per prompt is
                enough, since the hash identifies the prompt.
            prompt_ids: name of the prompt per sequence.
            finish_reasons: "stop", "length", …, one per sequence.
            sampling: effective sampling parameters, one dictionary or one per sequence. Equal ones are written once.
            engine_config_id: return value of `config` for the engine's configuration.
            request_ids: name of the request in the engine, if it differs from the sample id.
            trajectories: name in the trainer's records of the sequence that contains this request, one per request, or
                None if the request is a sequence.
            adapters: name of the LoRA adapter that sampled, one per sequence, or None for the base weights.
            adapter_ids: number of the adapter in the engine.
            steps: times of the sampling steps, by which late marks are placed.
            replica: name of the engine in place of the recorder's.
            routes: expert ids of a mixture of experts, as for `training`. Of vLLM's ``routed_experts``, pass the rows
                from prompt length − 1 on. A list may hold None for a sequence with unknown routes.
            lengths: sampled tokens of each padded row.
            cu_seqlens: [sequences + 1] starts of packed sequences.

        Returns:
            True if the call was accepted. Otherwise False, counted in `health` with the reason.
        """
        runtime = self._runtime
        with runtime.guard("rollout"):
            call = Call("rollout", token_ids=token_ids, sample_ids=sample_ids, cu_seqlens=cu_seqlens)
            call.require("logprobs", logprobs)
            call.row_lengths(lengths)
            call.spans(weight_version)
            call.numbers("cached_prefix_tokens", cached_prefix_tokens)
            call.numbers("prompt_lengths", prompt_lengths)
            call.labels("prompt_hashes", prompt_hashes)
            call.id_lists("prompt_token_ids", prompt_token_ids)
            call.labels("prompt_ids", prompt_ids)
            call.labels("finish_reasons", finish_reasons)
            call.labels("request_ids", request_ids)
            call.labels("trajectories", trajectories)
            call.labels("adapters", adapters)
            call.numbers("adapter_ids", adapter_ids)
            call.steps(steps)
            call.labels("engine_config_id", engine_config_id)
            call.labels("replica", replica if replica is not None else self._settings.replica)
            call.labels("sampling_id", self._sampling_ids(sampling, replica))
            expert_routes.add_to(call, routes)
            return runtime.offer(call)
        return False

    def step(
        self,
        step: int,
        scalars: Mapping[str, Any] | None = None,
        *,
        correction: Any = None,
        time: float | datetime | None = None,
        **more_scalars: Any,
    ) -> bool:
        """Record scalars of one optimizer step, such as learning rate, grad norm, loss, response length and step time.

        Args:
            step: optimizer step.
            scalars: name → number or tensor with one element. A GPU tensor is copied asynchronously. None is omitted.
                Other values are omitted with a warning.
            correction: correction applied in this step, or None if not stated. It is a `Correction`, whose report the
                recorder's thread reads, a text or a JSON-like document. Each rank and micro-batch states its
                correction.
            time: time of the step in epoch seconds or as datetime. Default: now.
            **more_scalars: additional scalars.

        Returns:
            True if all values were accepted.
        """
        with self._runtime.guard("step", step):
            values, parts, problems = records.scalars({**(scalars or {}), **more_scalars})
            for problem in problems:
                self._runtime.call_queue.health.report("bad_scalar", f"Recorder.step: {problem}; it is left out")
            if problems and not (values or parts or correction):
                return False
            number = records.whole_number("step", step)
            row = {
                "step": number,
                "rank": self._settings.rank,
                "scalars": values,
                "correction": records.correction(correction),
            }
            return self._small("step", row, parts=parts, step=number, time=time) and not problems
        return False

    def checkpoint(self, step: int, folder: str | os.PathLike[str] | None = None, *, deleted: bool = False) -> bool:
        """Record a checkpoint of the weights after optimizer step `step`.

        An incident can thereby name the last good checkpoint.

        Args:
            step: optimizer step.
            folder: folder of the checkpoint, absolute if it is read from elsewhere, or None if unknown.
            deleted: true if this checkpoint was deleted.

        Returns:
            True if the call was accepted.
        """
        with self._runtime.guard("checkpoint", step):
            number = records.whole_number("step", step)
            # The time makes a document of its own of a checkpoint that was deleted and is saved again.
            saved = {"step": number, "checkpoint": None if folder is None else os.fspath(folder), "deleted": deleted}
            return bool(self.config({**saved, "at": round(clock.time(), 3)}, kind=CHECKPOINT))
        return False

    def weights(
        self,
        version: int | str | None,
        *,
        step: int | None = None,
        source: str = "trainer",
        replica: str | None = None,
        requested_at: float | datetime | None = None,
        started_at: float | datetime | None = None,
        applied_at: float | datetime | None = None,
        resumed_at: float | datetime | None = None,
        pause_mode: str | None = None,
        cache_cleared: bool | None = None,
        tensors: int | None = None,
        checksum: str | None = None,
        adapter: str | None = None,
        moment: float | None = None,
        machine: str | None = None,
        seen: Mapping[str, int | None] | None = None,
        unless: Mapping[str, int | None] | None = None,
        fingerprint: Fingerprint | None = None,
        worker: str | None = None,
        reason: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> bool:
        """Record one weight update, as the trainer published it or as an engine applied it.

        Args:
            version: new version of the weights, or None if unknown.
            step: optimizer step that produced the weights.
            source: "trainer" or "engine".
            replica: name of the engine in place of the recorder's.
            requested_at: time of the request, in epoch seconds or as datetime (without a zone: local time), like the
                three that follow.
            started_at: start of the transfer.
            applied_at: time at which the new weights were in place.
            resumed_at: time at which generation continued.
            pause_mode: "keep", "wait", "abort", …
            cache_cleared: true if the prefix cache was reset, or None if unknown.
            tensors: number of updated tensors.
            checksum: checksum of the weights.
            adapter: name of the updated LoRA adapter, or None for the base weights.
            moment: `applied_at` on the monotonic clock of `machine`. It makes this record a mark, which gives tokens
                their version.
            machine: identifier of the monotonic clock, see `logprobe.collectors.clock`.
            seen: time at which an engine saw its weights, as `SEEN` in `logprobe.collectors.spool.schema`.
            unless: for an engine with unknown weights since `moment`, the time range in which a mark would name them,
                as `UNLESS`.
            fingerprint: fingerprint of the weights, see `logprobe.collectors.fingerprint`. Engines with the plugin
                compute their own.
            worker: worker of the engine that computed the fingerprint.
            reason: reason for the fingerprint.
            checkpoint: folder of a Hugging Face checkpoint of these weights for `logprobe bisect`, absolute if commands
                run in another folder.
        """
        if checkpoint is not None and version is not None:
            named = {"version": text(version), "step": step, "checkpoint": str(checkpoint)}
            self.config(named, kind=CHECKPOINT, replica=replica)
        layout = (
            None if fingerprint is None else self.config(fingerprint.document(), kind="weight_layout", replica=replica)
        )
        with self._runtime.guard("weights", step):
            number = None if step is None else records.whole_number("step", step)
            row = {
                "version": text(version),
                "step": number,
                "source": source,
                "replica": replica if replica is not None else self._settings.replica,
                "requested_at": records.micros(requested_at),
                "started_at": records.micros(started_at),
                "applied_at": records.micros(applied_at),
                "resumed_at": records.micros(resumed_at),
                "pause_mode": pause_mode,
                "cache_cleared": cache_cleared,
                "tensors": tensors,
                "checksum": checksum,
                "adapter": adapter,
                "moment": None if moment is None else round(moment * 1e6),
                "machine": machine,
                "seen": _fields(seen, SEEN),
                "unless": _fields(unless, UNLESS),
                "fingerprint": None if fingerprint is None else fingerprint.digest,
                "layout": layout,
                "tensor_hashes": None if fingerprint is None else fingerprint.hashes.tolist(),
                "worker": worker,
                "reason": reason,
                "elements": self._elements(fingerprint) if adapter is None else None,
            }
            return self._small("weights", row, step=number)
        return False

    def _elements(self, fingerprint: Fingerprint | None) -> dict[str, int] | None:
        """Count what rounding does to a trainer's weights since their last fingerprint."""
        if fingerprint is None or fingerprint.values is None:
            return None
        before, self._fingerprint = self._fingerprint, fingerprint
        return rounding(fingerprint, before)

    def config(self, document: object, *, kind: str = "engine_config", replica: str | None = None) -> str:
        """Record a configuration document, once per content.

        Args:
            document: JSON-like value. Other values become their `repr`.
            kind: "engine_config", "sampling_params", "trainer_config", "weight_layout" or "run".
            replica: name of the engine in place of the recorder's.

        Returns:
            The document's fingerprint, equal in every process, or "" if the document could not be read.
        """
        mark = ""
        with self._runtime.guard("config"):
            text = canonical_json(document)
            mark = fingerprint(text)
            if (kind, mark) not in (known := self._runtime.documents):
                chosen = replica if replica is not None else self._settings.replica
                row = {"fingerprint": mark, "kind": kind, "replica": chosen, "document": text}
                known.add((kind, mark))
                if not self._small("config", row, extra_bytes=len(text)):
                    known.discard((kind, mark))
        return mark

    def report(
        self,
        event: str,
        message: str,
        *,
        severity: str = "info",
        component: str | None = None,
        sequences: int = 0,
        tokens: int = 0,
        step: int | None = None,
        details: object = None,
    ) -> bool:
        """Write a `health` record of a collector's finding about its host, or about a failure of the collector.

        Args:
            event: identifier, such as "self_test". The recorder reserves "started", "heartbeat" and "closed", which
                would mark the run as ended. Repetitions of the same severity within 10 s become one record with a
                count.
            message: one sentence for users.
            severity: "info", "warning" or "error". The last two are also logged.
            component: name of the component. Default: the recorder's.
            sequences: number of affected sequences.
            tokens: number of affected tokens.
            step: affected step.
            details: JSON-like value.
        """
        with self._runtime.guard("report", step):
            health = self._runtime.call_queue.health
            health.report(
                records.event(event),
                message,
                severity=severity,
                component=component,
                sequences=sequences,
                tokens=tokens,
                step=step,
                details=details,
            )
            return True
        return False

    def state(self, event: str, message: str, details: object) -> bool:
        """Write a `health` record of the current state. Unlike `report`, record every call and log none."""
        with self._runtime.guard("state"):
            return self._small(
                "health", records.state(self._settings.component, records.event(event), message, details)
            )
        return False

    def begins(self, step: int) -> bool:
        """Declare that training begins, or resumes from a checkpoint, at `step`. This and later steps are trained
        again.

        A repeated step invalidates its earlier records of this rank in this run, those of this session included. The
        adapters of TRL, ms-swift and verl call this method.
        """
        with self._runtime.guard("begins", step):
            details = {"rank": self._settings.rank} | ({"again": True} if self._trained else {})
            row = records.state(self._settings.component, "training_begins", "training begins", details)
            return self._small("health", row | {"step": records.whole_number("step", step)})
        return False

    def flush(self, timeout: float = 30.0) -> bool:
        """Write everything recorded so far and wait at most `timeout` seconds.

        Returns:
            True only if everything accepted before this call is on disk, fsynced. False after a timeout or a refusal of
            the disk, or if accepted data was dropped or reduced to statistics since the last flush.
        """
        with Guard(self._runtime.call_queue.health, "flush", cost=False):
            return self._runtime.flush(timeout)
        return False

    def close(self, timeout: float = 30.0) -> bool:
        """Write everything and end the thread, waiting at most `timeout` seconds. Further calls have no effect.

        The last record (health: ``out_of_time``) counts the data that could not be written before the process ends.
        """
        with Guard(self._runtime.call_queue.health, "close", cost=False):
            return self._runtime.close(timeout)
        return False

    @property
    def health(self) -> RecorderHealth:
        """Snapshot of all counts as a plain dictionary: accepted, written, dropped (by reason), and the cost."""
        return self._runtime.snapshot()

    @property
    def writer_id(self) -> str:
        """Name of this process in the spool."""
        return self._runtime.writer_id

    @property
    def home(self) -> str:
        """Path or address of the data directory."""
        return self._settings.home

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._settings.run

    def guard(self, what: str) -> Guard:
        """Return a context for adapter code.

        Its exceptions become counted health records, and its duration counts as the host's cost.
        """
        return self._runtime.guard(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = isinstance(error, SystemExit) and error.code in (None, 0)
        if kind is not None and not ended:
            with self._runtime.guard("close"):
                self._runtime.host_failed(kind.__name__)
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (asdict(self._settings),)

    def __repr__(self) -> str:
        settings = self._settings
        return f"Recorder(home={settings.home!r}, run={settings.run!r}, writer={self.writer_id!r})"

    def _small(
        self,
        kind: str,
        row: dict[str, Any],
        *,
        parts: list[Part] | None = None,
        step: int | None = None,
        time: float | datetime | None = None,
        extra_bytes: int = 0,
    ) -> bool:
        item = Captured(kind, row, step)
        item.parts = parts or []
        item.extra_bytes += extra_bytes
        if time is not None:
            item.time_us = records.micros(time) or item.time_us
        return self._runtime.offer(item)

    def _sampling_ids(self, sampling: Any, replica: str | None) -> Any:
        if sampling is None:
            return None
        if isinstance(sampling, Mapping | str) or not isinstance(sampling, Iterable):  # such as a dataclass
            return self.config(sampling, kind="sampling_params", replica=replica)
        fingerprints: dict[int, str] = {}  # requests of one batch mostly share one object
        for item in sampling:
            if item is not None and id(item) not in fingerprints:
                fingerprints[id(item)] = self.config(item, kind="sampling_params", replica=replica)
        return [None if item is None else fingerprints[id(item)] for item in sampling]


def _fields(values: Mapping[str, int | None] | None, kind: Iterable[pa.Field]) -> tuple[int | None, ...] | None:
    return None if values is None else tuple(values[field.name] for field in kind)


def _recreate(arguments: Mapping[str, Any]) -> Recorder:
    return Recorder(**arguments)
