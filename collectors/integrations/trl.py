"""Adapter of TRL: `watch(trainer)` records a `GRPOTrainer`, `RLOOTrainer` or `AsyncGRPOTrainer` completely.

    from logprobe.collectors.integrations import trl

    trl.watch(trainer)        # LOGPROBE_HOME, LOGPROBE_RUN; before trainer.train()

Records per micro-batch contain sampled tokens, their mask without tool output, entropy, rewards, advantages, prompt
groups and the sampling weight version. They also contain the log-probs of engine, trainer (old and current) and
reference model. Per logged step, it records all of TRL's own scalars. The step number is that of TRL's log,
`state.global_step` after the update. Evaluation data are not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.collectors.integrations.correcting import Corrector, Divisor, share_left, unmet, weights_for
from logprobe.collectors.integrations.hf_trainer import (
    configuration,
    mark_weights,
    record_logged,
    session,
    weighted_rewards,
)
from logprobe.collectors.integrations.trl_async import METHODS as ASYNC_METHODS
from logprobe.collectors.integrations.trl_async import AsyncWatch, is_async_grpo
from logprobe.collectors.integrations.wrapping import (
    Wrapper,
    record_rollout,
    unknown_methods,
    usable,
    version_of,
    watched,
)
from logprobe.collectors.recorder.inert import recorder_or_inert
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.vllm.ids import sample_ids as engine_names

METHODS: Final[dict[str, tuple[str, ...]]] = {
    "_generate_and_score_completions": ("inputs",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "logits_to_keep"),
    "_compute_loss": ("model", "inputs"),
    "log": ("logs", "start_time"),
}
# Columns of ours in TRL's batch: TRL shuffles and splits them with its own.
_NAMES: Final = "logprobe_names"
_GROUPS: Final = "logprobe_groups"
_REWARDS: Final = "logprobe_rewards"
_VERSIONS: Final = "logprobe_versions"  # of the weights that sampled
_SCORED: Final = "logprobe_scored"  # version of the weights that gave the old log-probs
_OLD: Final = "logprobe_old_logps"
_REFERENCE: Final = "logprobe_reference_logps"
_RATIO: Final = "importance_sampling_ratio"
_CORRECTED: Final = ("sampling_per_token_logps", "old_per_token_logps", "advantages", "completion_mask", "tool_mask")
# What divides the losses that multiply each token's term by the ratio; VESPO takes the ratio's logarithm into a weight
# of its own.
_DIVISORS: Final[dict[str, Divisor]] = {
    "grpo": "sequence", "sapo": "sequence", "bnpo": "batch", "dapo": "update", "cispo": "update", "dr_grpo": None,
    "luspo": None,
}  # fmt: skip
_NEEDED: Final = ("completion_ids", "completion_mask")
_OWN_CORRECTION: Final = "vllm_importance_sampling_correction"
_SETTINGS: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "loss_type", "epsilon", "epsilon_high", "beta",
    "num_iterations", "num_generations", "steps_per_generation", "gradient_accumulation_steps",
    "per_device_train_batch_size", "learning_rate", "max_completion_length", "importance_sampling_level",
    "scale_rewards", "mask_truncated_completions", "use_vllm", "vllm_mode", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
    "cast_lm_head_to_fp32", "disable_dropout", "max_grad_norm",
)  # fmt: skip


def watch(
    trainer: Any,
    *,
    home: str | os.PathLike[str] | None = None,
    run: str | None = None,
    recorder: Recorder | None = None,
    correction: bool = False,
) -> Recorder:
    """Record all steps of `trainer`. Call this on every rank, before `trainer.train()`. Further calls have no effect.

    Args:
        trainer: a `trl.GRPOTrainer`, `trl.RLOOTrainer`, `trl.experimental.async_grpo.AsyncGRPOTrainer` or a subclass
            that keeps their methods.
        home: data directory, by default ``LOGPROBE_HOME``.
        run: name of the run, by default ``LOGPROBE_RUN``, else the trainer's ``run_name`` or the name of its
            ``output_dir``.
        recorder: recorder of the trainer, by default a new one for this rank.
        correction: true to let logprobe's controller replace TRL's importance weights while a correction is on.
            Requires ``vllm_importance_sampling_correction=True``, which asynchronous GRPO does not have.

    Returns:
        The recorder. Without a usable data directory, or with an unknown version of TRL, the trainer stays unchanged
        and is not recorded. The log, or a health record, states the reason.
    """
    asynchronous = is_async_grpo(trainer)

    def attach(chosen: Recorder) -> None:
        if asynchronous:
            AsyncWatch(trainer, chosen).attach(correction=correction)
        else:
            _Watch(trainer, chosen, Corrector(chosen, "trl") if correction else None).attach()

    rank = trainer.accelerator.process_index
    return watched(
        trainer,
        "trl",
        name=f"{type(trainer).__name__} of TRL {version_of('trl')}",
        recorder=lambda: recorder or recorder_or_inert("trl.watch", home, _run_of(trainer, run), rank=rank),
        problems=lambda: unknown_methods(trainer, ASYNC_METHODS if asynchronous else METHODS),
        attach=attach,
    )


def _run_of(trainer: Any, run: str | None) -> str | None:
    if run is not None or os.environ.get("LOGPROBE_RUN"):
        return run
    return trainer.args.run_name or Path(trainer.args.output_dir).name


class _Watch:
    """State shared by the wrappers of TRL's methods."""

    def __init__(self, trainer: Any, recorder: Recorder, corrector: Corrector | None) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._corrector = corrector
        self._wrapper = Wrapper(recorder, "trl")
        self._requests: list[list[str]] = []  # names the engine gave, per call of it in this generation
        self._rewards: Any = None
        # Log-probs and entropy of each forward pass of this generation, or of this loss.
        self._forwards: list[tuple[Any, Any]] = []
        self._generations = 0
        # Of the weights that sample; a batch keeps that of its own. A trainer that loads its engine at some generations
        # only scores with newer ones.
        self._version = 0
        # The batch that TRL splits into the micro-batches of its updates, where they are corrected, and what is left of
        # it by configuration.
        self._whole: Mapping[str, Any] = {}
        self._left: dict[CorrectionConfig, Any] = {}

    def attach(self) -> None:
        """Wrap the trainer's methods, and those of its engine."""
        trainer, wrapper = self._trainer, self._wrapper
        engine = getattr(trainer, "vllm_generation", None)
        if engine is not None and callable(getattr(engine, "sync_weights", None)):
            wrapper.after(engine, "sync_weights", self._synchronized)
        if engine is None and getattr(trainer.args, "use_vllm", False):
            words = (
                "this TRL has no vllm_generation, which came with 0.29: weights that its engine loads are not marked, "
                "nor are its samples joined by name"
            )
            self._recorder.report("self_test", words, severity="warning", component="trl")
        colocated = getattr(engine, "llm", None)  # none in server mode
        if callable(getattr(colocated, "generate", None)):
            wrapper.after(colocated, "generate", self._sampled)
        wrapper.after(trainer, "_calculate_rewards", self._rewarded)
        wrapper.after(trainer, "_get_per_token_logps_and_entropies", self._computed)
        wrapper.around(trainer, "_generate_and_score_completions", self._begin, self._generated)
        wrapper.around(trainer, "_compute_loss", self._corrected, self._trained)
        wrapper.after(trainer, "log", self._logged)
        trainer.add_callback(session(self._recorder))
        self._recorder.config(configuration(trainer, "trl", _SETTINGS), kind="trainer_config")

    # --- One generation ---

    def _synchronized(self, _: Any) -> None:
        self._version = int(self._trainer.state.global_step)
        mark_weights(self._recorder, self._version)

    def _begin(self, *_: Any) -> None:
        self._requests, self._forwards, self._rewards = [], [], None

    def _sampled(self, outputs: Sequence[Any], *_: Any, **__: Any) -> None:
        self._requests.append([name for output in outputs for name in engine_names(output)])

    def _rewarded(self, rewards_per_function: Any, *_: Any, **__: Any) -> None:
        """Store the weighted rewards of [samples of all ranks, functions]."""
        self._rewards = weighted_rewards(rewards_per_function, self._trainer.reward_weights)

    def _computed(self, result: tuple[Any, ...], *_: Any, **__: Any) -> None:
        self._forwards.append((_detached(result[0]), _detached(result[1])))

    def _generated(self, batch: MutableMapping[str, Any], inputs: Sequence[Any], *_: Any) -> None:
        """Add logprobe's columns to the batch of one generation."""
        passes, self._forwards = [logprobs for logprobs, _ in self._forwards], []
        if not self._trainer.model.training:
            return
        if not usable(self._recorder, "trl", batch, _NEEDED, step=self._step, lost=len(inputs)):
            return
        self._generations += 1
        if self._corrector is not None:
            self._whole, self._left = {name: batch.get(name) for name in _CORRECTED}, {}
        scored = int(self._trainer.state.global_step)
        if not self._uses_engine:
            self._version = scored
        size, rank = len(batch["completion_ids"]), int(self._trainer.accelerator.process_index)
        met = self._requests[0] if self._names_meet(size) else None
        unique = f"{os.getpid()}-{self._generations}-{rank}"
        batch[_NAMES] = met or [f"trl-{unique}-{row}" for row in range(size)]
        group = int(self._trainer.num_generations)
        batch[_GROUPS] = [f"{self._version}-{self._generations}-{(rank * size + row) // group}" for row in range(size)]
        batch[_VERSIONS], batch[_SCORED] = [self._version] * size, [scored] * size
        if self._rewards is not None:
            batch[_REWARDS] = self._rewards[rank * size : (rank + 1) * size]
        if "old_logps" in batch:  # RLOO scores the policy, then the reference, and keeps only sums
            batch.update(zip((_OLD, _REFERENCE), passes, strict=False))
        if met is None and batch.get("sampling_per_token_logps") is not None:
            record_rollout(
                self._recorder,
                _mask(batch),
                token_ids=batch["completion_ids"],
                logprobs=batch["sampling_per_token_logps"],
                sample_ids=batch[_NAMES],
                prompt_ids=batch[_GROUPS],
                weight_version=self._version,
            )

    @property
    def _uses_engine(self) -> bool:
        return getattr(self._trainer, "vllm_generation", None) is not None

    def _names_meet(self, size: int) -> bool:
        """Return whether the engine's plugin records these samples, each by one request of known name."""
        return bool(os.environ.get("LOGPROBE_HOME")) and [len(names) for names in self._requests] == [size]

    # --- One micro-batch ---

    def _corrected(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Return the batch with logprobe's importance weights while a correction is on."""
        self._forwards = []
        if self._corrector is None or not self._trainer.model.training:
            return None
        weights = self._corrector.weights(
            self._step, lambda config: self._impossible(config, inputs), lambda config: self._weighted(config, inputs)
        )
        return None if weights is None else (model, {**inputs, _RATIO: weights})

    def _weighted(self, config: CorrectionConfig, inputs: Mapping[str, Any]) -> tuple[Correction, Any]:
        correction = _correction(config, inputs)
        return correction, weights_for(correction, _mask(inputs), _DIVISORS[self._loss], self._share_left(config))

    def _impossible(self, config: CorrectionConfig, inputs: Mapping[str, Any]) -> str | None:
        """Return the reason why TRL's loss cannot apply `config`, or None."""
        loss, ranks = self._loss, int(self._trainer.accelerator.num_processes)
        if any(inputs.get(name) is None for name in (_RATIO, *_CORRECTED[:2])):
            return "TRL applies none itself: set vllm_importance_sampling_correction=True"
        if loss not in _DIVISORS:
            return f"what loss_type={loss!r} does with importance weights is not known"
        divisor = _DIVISORS[loss]
        if divisor == "update" and ranks > 1:
            divisor = None  # the tokens of other ranks are not known here, and asking them could stop a training
        return unmet(config, divisor=divisor, parts=ranks * int(self._trainer.args.gradient_accumulation_steps))

    def _share_left(self, config: CorrectionConfig) -> Any:
        """Return the remaining share of the whole generation's tokens (0-d tensor), or None for another divisor."""
        if _DIVISORS[self._loss] != "update" or config.denominator == "keep":
            return None
        if config not in self._left:
            self._left = {config: share_left([_correction(config, self._whole)], [_mask(self._whole)])}
        return self._left[config]

    @property
    def _loss(self) -> str:
        return str(self._trainer.args.loss_type)

    def _trained(self, _: Any, __: Any, inputs: Mapping[str, Any]) -> None:
        forwards, self._forwards = self._forwards, []
        if not self._trainer.model.training or _NAMES not in inputs:
            return
        needed, spared = self._expected()
        if not usable(self._recorder, "trl", inputs, needed, spared=spared, step=self._step, lost=len(inputs[_NAMES])):
            return
        current, entropy = forwards[-1] if forwards else (None, None)
        old = inputs.get("old_per_token_logps", inputs.get(_OLD))
        trainer_logprobs = current if old is None else old
        if trainer_logprobs is None:
            words = "the trainer keeps no log-probs per token (a fused loss): nothing can be compared"
            self._recorder.report("no_logprobs", words, severity="warning", component="trl", step=self._step)
            return
        self._recorder.training(
            step=self._step,
            sample_ids=inputs[_NAMES],
            prompt_ids=inputs[_GROUPS],
            token_ids=inputs["completion_ids"],
            mask=_mask(inputs),
            trainer_logprobs=trainer_logprobs,
            current_logprobs=None if old is None else current,
            rollout_logprobs=inputs.get("sampling_per_token_logps"),
            reference_logprobs=inputs.get("ref_per_token_logps", inputs.get(_REFERENCE)),
            entropy=entropy,
            advantages=inputs.get("advantages"),
            rewards=inputs.get(_REWARDS),
            weight_version=inputs[_SCORED],
            rollout_versions=inputs[_VERSIONS],
        )

    def _expected(self) -> tuple[list[str], list[str]]:
        """Return the keys of a micro-batch that TRL computes under its settings: needed ones, and spared ones.

        Without old log-probs, the current ones replace them.
        """
        settings, needed, spared = self._trainer.args, [*_NEEDED], ["advantages"]
        if any(owner.__name__ == "RLOOTrainer" for owner in type(self._trainer).__mro__):
            return [*needed, "old_logps"], spared
        interval = getattr(settings, "steps_per_generation", 1) * getattr(settings, "num_iterations", 1)
        weighted = getattr(settings, "use_vllm", False) and getattr(settings, _OWN_CORRECTION, False)
        if weighted:
            spared.append("sampling_per_token_logps")
        if weighted or getattr(settings, "gradient_accumulation_steps", 1) % interval:
            needed.append("old_per_token_logps")
        return needed, [*spared, "ref_per_token_logps"] if getattr(settings, "beta", 0.0) else spared

    @property
    def _step(self) -> int:
        """Number under which TRL logs this step. TRL logs after the update."""
        return int(self._trainer.state.global_step) + 1

    # --- One logged step ---

    def _logged(self, _: Any, logs: Mapping[str, Any], *__: Any, **___: Any) -> None:
        """Record the scalars after TRL added its metrics to them."""
        record_logged(self._recorder, self._trainer, logs)


def _correction(config: CorrectionConfig, batch: Mapping[str, Any]) -> Correction:
    rollout, trainer, advantages = (batch[name] for name in _CORRECTED[:3])
    return correct(config, rollout, trainer, _mask(batch), advantages=advantages)


def _mask(batch: Mapping[str, Any]) -> Any:
    """Return the mask [batch, time] of tokens sampled by the policy, without tool output."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if batch.get("tool_mask") is not None else mask


def _detached(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach()
