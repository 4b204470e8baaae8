"""Adapter of TRL's experimental `AsyncGRPOTrainer`, for `logprobe.collectors.integrations.trl.watch`.

Engines sample in parallel with the training. The old log-probs in TRL's batch are the engine's. The trainer computes
its own log-probs once, in the loss, so there is no pair `update`. TRL packs the samples of a batch into a tree, from
which a loss takes its tokens. The tree omits reward, group and version. The adapter passes these in columns that every
rank receives with its part of the batch.

A sample carries the version that was live when its group began. Requests in flight continue under new weights. The
version is therefore known only if no update began before the trainer received the sample.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from logprobe.collectors.integrations.hf_trainer import configuration, mark_weights, record_logged, session
from logprobe.collectors.integrations.wrapping import Wrapper, missing_keys, report_missing
from logprobe.collectors.recorder.recorder import Recorder

METHODS: Final[dict[str, tuple[str, ...]]] = {
    "compute_loss": ("model", "inputs"),
    "get_train_dataloader": (),
    "_sync_weight_merged": ("t0",),
    "_sync_weight_lora": ("t0",),
    "log": ("logs", "start_time"),
}
_SETTINGS: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "epsilon", "epsilon_high", "num_generations",
    "max_completion_length", "token_budget", "max_staleness", "max_inflight_tasks", "weight_sync_steps",
    "gradient_accumulation_steps", "per_device_train_batch_size", "learning_rate", "max_grad_norm",
)  # fmt: skip
_NEEDED: Final = ("attention_mask", "shift_labels", "token_index", "old_log_probs", "advantages", "segment_id")
# Our columns of the packed batch, [ranks, samples]: a running number, and what TRL drops.
_NAME, _GROUP, _VERSION, _REWARD = _OURS = tuple(f"logprobe_{name}" for name in ("name", "group", "version", "reward"))
_UNKNOWN: Final = -1


def is_async_grpo(trainer: Any) -> bool:
    """Return whether `trainer` is an `AsyncGRPOTrainer`. No other trainer of TRL has this attribute."""
    return hasattr(trainer, "rollout_worker")


class AsyncWatch:
    """State between the methods of a training."""

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._wrapper = Wrapper(recorder, "trl")
        self._hooked: Any = None  # the model whose forward passes are seen
        self._scored: tuple[Any, Any] | None = None  # log-probs and entropy of the loss's forward pass
        self._samples = 0  # that were put into batches
        # Of TRL's versions that may still come: the optimizer step whose weights they are, and when their update began
        # (wall clock).
        self._updates: dict[int, tuple[int, float]] = {}
        # Of samples that are in no batch yet, by the identity of their tokens, which are held so that no other object
        # has it: TRL's version, and the optimizer step whose weights sampled.
        self._sampled: dict[int, tuple[Any, int, int]] = {}

    def attach(self, *, correction: bool) -> None:
        """Wrap the trainer's methods and the queue of its workers."""
        if correction:
            words = (
                "asynchronous GRPO clips the ratio to the engine's log-probs itself; it has no importance weights that "
                "a correction could set"
            )
            self._recorder.report("correction_impossible", words, severity="warning", component="trl")
        trainer, wrapper = self._trainer, self._wrapper
        if callable(getattr(getattr(trainer, "rollout_queue", None), "get", None)):  # rank 0 alone has one
            wrapper.after(trainer.rollout_queue, "get", self._arrived)
        wrapper.after(trainer, "get_train_dataloader", self._loading)
        for update in (
            "_sync_weight_merged",
            "_sync_weight_lora",
        ):  # callbacks have kept the method that chooses between them
            wrapper.around(trainer, update, self._update_begins, self._updated)
        wrapper.around(trainer, "compute_loss", self._begin, self._trained)
        wrapper.after(trainer, "log", self._logged)
        trainer.add_callback(session(self._recorder))
        self._recorder.config(configuration(trainer, "trl", _SETTINGS), kind="trainer_config")

    # --- Weights ---

    @property
    def _optimizer_step(self) -> int:
        return int(self._trainer.state.global_step)

    def _update_begins(self, *_: Any) -> None:
        version = int(self._trainer.model_version) + 1
        self._updates[version] = (self._optimizer_step, time.time())
        oldest = version - int(getattr(self._trainer.args, "max_staleness", 0)) - 1
        self._updates = {number: update for number, update in self._updates.items() if number >= oldest}
        # What TRL drops as too old comes into no batch.
        self._sampled = {key: sampled for key, sampled in self._sampled.items() if sampled[1] >= oldest}

    def _updated(self, *_: Any) -> None:
        if self._trainer.accelerator.is_main_process:
            mark_weights(self._recorder, self._optimizer_step)

    # --- Samples, on rank 0 ---

    @property
    def _same_clock(self) -> bool:
        """True for TRL's own worker, which is a process of this machine. The clock of another worker is unknown."""
        return any(kind.__module__.startswith("trl.") for kind in type(self._trainer.rollout_worker).__mro__)

    def _arrived(self, sample: Any, *_: Any, **__: Any) -> None:
        """Record the version that sampled, where it is certain. TRL drops a sample's version."""
        version, tokens = int(sample.model_version), sample.input_ids
        following = self._updates.get(version + 1)
        handed_over = (sample.enqueued_at if self._same_clock else None) or time.time()
        if version not in self._updates or (following is not None and following[1] <= handed_over):
            return
        self._sampled[id(tokens)] = (tokens, version, self._updates[version][0])

    def _loading(self, loader: Any, *_: Any) -> None:
        collator = getattr(loader, "collate_fn", None)  # rank 0 alone is asked by it
        if callable(getattr(collator, "torch_call", None)):
            self._wrapper.instead(collator, "torch_call", self._collated)

    def _collated(self, batch: dict[str, Any], examples: list[Any]) -> dict[str, Any]:
        """Return the batch with logprobe's columns, [ranks, samples of the longest row]."""
        import torch  # noqa: PLC0415 - the trainer has loaded it

        (rows,) = examples
        longest = max(len(row.samples) for row in rows)
        columns = {name: torch.full((len(rows), longest), _UNKNOWN) for name in _OURS[:-1]}
        columns[_REWARD] = torch.full((len(rows), longest), float("nan"))
        for rank, row in enumerate(rows):
            for index, sample in enumerate(row.samples):
                columns[_NAME][rank, index] = self._samples
                columns[_GROUP][rank, index] = int(sample["group_id"])
                *_, columns[_VERSION][rank, index] = self._sampled.pop(id(sample["input_ids"]), (_UNKNOWN,))
                columns[_REWARD][rank, index] = float(sample["metrics"].get("reward", "nan"))
                self._samples += 1
        return batch | columns

    # --- One micro-batch, on every rank ---

    def _begin(self, model: Any, *_: Any) -> None:
        self._scored = None
        if model is not self._hooked:
            model.register_forward_hook(self._forward)
            self._hooked = model

    def _forward(self, _: Any, __: Any, output: Any) -> None:
        with self._wrapper.guard("forward"):
            self._scored = output.log_probs.detach(), output.entropy.detach()

    def _trained(self, _: Any, model: Any, inputs: dict[str, Any], *__: Any) -> None:
        if not model.training:
            return
        step, scored = self._optimizer_step + 1, self._scored  # TRL logs after the update
        missing = missing_keys(inputs, [*_NEEDED, *_OURS])
        if missing or scored is None:
            lost = int(inputs["segment_id"].max()) + 1 if "segment_id" in inputs else 1
            report_missing(self._recorder, "trl", missing or ["log-probs of the model"], step=step, lost=lost)
            return
        import torch  # noqa: PLC0415 - the trainer has loaded it

        selected = inputs["token_index"] >= 0
        places, segments = inputs["token_index"][selected], inputs["segment_id"][selected]
        names, groups, versions, rewards = (inputs[column].flatten().tolist() for column in _OURS)
        count = len(names) - names.count(_UNKNOWN)  # a shorter row than another rank's is filled up
        ends = torch.bincount(segments, minlength=count).cumsum(0)
        self._recorder.training(
            step=step,
            sample_ids=[f"trl-{os.getpid()}-{name}" for name in names[:count]],
            prompt_ids=[str(group) for group in groups[:count]],
            token_ids=inputs["shift_labels"][inputs["attention_mask"].bool()][places],
            cu_seqlens=torch.cat([ends.new_zeros(1), ends]),
            trainer_logprobs=scored[0].flatten()[places],
            rollout_logprobs=inputs["old_log_probs"][selected],
            entropy=scored[1].flatten()[places],
            advantages=inputs["advantages"][selected],
            rewards=rewards[:count],
            weight_version=self._optimizer_step,
            rollout_versions=[None if version == _UNKNOWN else version for version in versions[:count]],
        )

    def _logged(self, _: Any, logs: dict[str, Any], *__: Any, **___: Any) -> None:
        record_logged(self._recorder, self._trainer, logs)
