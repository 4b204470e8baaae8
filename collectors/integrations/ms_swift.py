r"""Adapter of ms-swift: an external plugin with the callback ``logprobe``, which records GRPO completely.

    swift rlhf --rlhf_type grpo … \\
        --external_plugins "$(python -m logprobe.collectors.integrations.ms_swift)" --callbacks logprobe

`LOGPROBE_HOME` is the destination. Without `LOGPROBE_RUN`, the run has the name of the output folder. Records per
micro-batch contain sampled tokens and their mask, entropy, rewards, advantages, prompt groups and weight versions. They
also contain the log-probs of engine, trainer (old and current) and reference model. Per logged step, the adapter
records ms-swift's own scalars under the step number of ms-swift's log. It does not record evaluation data. With
``LOGPROBE_CORRECTION=1`` the controller's importance weights replace ms-swift's own while a correction is on. Sequence
parallelism and padding-free batches have another token layout. The adapter skips them and reports this in a health
record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.collectors.integrations.correcting import (
    Corrector,
    Divisor,
    corrector_if_wanted,
    share_left,
    unmet,
    weights_for,
)
from logprobe.collectors.integrations.hf_trainer import (
    Session,
    configuration,
    mark_weights,
    record_logged,
    weighted_rewards,
)
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
from logprobe.collectors.vllm.ids import sample_id as engine_name

METHODS: Final[dict[str, tuple[str, ...]]] = {
    "_prepare_batch_inputs": ("samples",),
    "_score_completions": ("samples",),
    "_compute_loss_and_metrics": ("model", "model_inputs", "grpo_batch"),
    "_get_per_token_logps_and_entropies": ("model", "model_inputs", "grpo_batch"),
    "log": ("logs", "start_time"),
}
_ATTRIBUTE: Final = "logprobe"  # of a batch of ms-swift, for what belongs to it
_WINDOW: Final = "logprobe_window"  # of a batch of ms-swift: all micro-batches whose tokens divide its loss
# What divides the losses that multiply each token's term by the weights; REAL does not use them.
_DIVISORS: Final[dict[str, Divisor]] = {
    "grpo": "sequence", "sapo": "sequence", "bnpo": "batch", "dapo": "update", "cispo": "update", "fipo": "update",
    "dr_grpo": None,
}  # fmt: skip
# Fields of its batches, which may be None; without the first ones nothing can be recorded.
_NEEDED: Final = ("completion_mask", "old_per_token_logps")
_SPARED: Final = ("rollout_per_token_logps", "ref_per_token_logps", "advantages")
_SETTINGS: Final = (
    "temperature", "top_p", "top_k", "repetition_penalty", "loss_type", "epsilon", "epsilon_high", "beta",
    "num_iterations", "num_generations", "steps_per_generation", "gradient_accumulation_steps",
    "per_device_train_batch_size", "learning_rate", "max_completion_length", "importance_sampling_level",
    "rollout_importance_sampling_mode", "rollout_importance_sampling_threshold", "use_vllm", "vllm_mode",
    "async_generate", "tuner_type", "min_p", "max_grad_norm", "vllm_enable_prefix_caching", "router_replay_mode",
)  # fmt: skip


def watch(trainer: Any, *, home: str | os.PathLike[str] | None = None, run: str | None = None) -> Recorder:
    """Record all steps of a GRPO trainer of ms-swift. The callback ``logprobe`` calls this when training begins.

    Args:
        trainer: complete `GRPOTrainer` of ms-swift, with its engine.
        home: data directory, by default ``LOGPROBE_HOME``.
        run: name of the run, by default ``LOGPROBE_RUN``, else the name of the output folder.

    Returns:
        The recorder. An unknown version is left unchanged and not recorded, as is every trainer without a usable data
        directory. The log, or a health record, states the reason. Further calls have no effect.
    """
    default = None if os.environ.get("LOGPROBE_RUN") else Path(trainer.args.output_dir).name
    rank = trainer.accelerator.process_index
    return watched(
        trainer,
        "ms_swift",
        name=f"{type(trainer).__name__} of ms-swift {version_of('ms-swift')}",
        recorder=lambda: recorder_or_inert("ms_swift.watch", home, run or default, rank=rank),
        problems=lambda: [*unknown_methods(trainer, METHODS), *_unknown_layout(trainer)],
        attach=lambda recorder: _Watch(trainer, recorder, corrector_if_wanted(recorder, "ms_swift")).attach(),
    )


def _unknown_layout(trainer: Any) -> Iterator[str]:
    template = getattr(trainer, "template", None)
    if getattr(template, "padding_free", False):
        yield "padding_free batches have a different layout"
    if getattr(template, "sequence_parallel_size", 1) > 1:
        yield "sequence parallelism splits sequences"


class _Watch:
    """State shared by the wrappers of ms-swift's methods."""

    def __init__(self, trainer: Any, recorder: Recorder, corrector: Corrector | None) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._corrector = corrector
        self._corrected: Any = None  # the batch whose loss is computed now, until ms-swift has asked for its weights
        self._wrapper = Wrapper(recorder, "ms_swift")
        self._requests: list[list[str]] = []  # names the engine gave, per call of it in this generation
        self._forward: tuple[Any, Any] = (None, None)  # log-probs and entropy of the latest forward pass
        self._generations = 0
        self._loaded: int | None = None  # version of the weights that the engine has

    @property
    def _step(self) -> int:
        return int(self._trainer.state.global_step)

    @property
    def _sampler(self) -> int | None:
        """Version of the weights that sampled the current batch, or None if sampling runs asynchronously."""
        arguments = self._trainer.args
        if getattr(arguments, "async_generate", False):
            return None
        return self._loaded if getattr(arguments, "use_vllm", False) else self._step

    def attach(self) -> None:
        """Wrap the trainer's methods."""
        trainer, wrapper = self._trainer, self._wrapper
        if callable(getattr(trainer, "_move_model_to_vllm", None)):
            wrapper.after(trainer, "_move_model_to_vllm", self._synchronized)
        if callable(getattr(trainer, "_colocate_rollout", None)):
            wrapper.after(trainer, "_colocate_rollout", self._sampled)
        wrapper.after(trainer, "_prepare_batch_inputs", self._prepared)
        wrapper.after(trainer, "_get_per_token_logps_and_entropies", self._computed)
        wrapper.around(trainer, "_compute_loss_and_metrics", self._begin, self._trained)
        if self._corrector is not None and callable(getattr(trainer, "_apply_rollout_importance_sampling", None)):
            wrapper.instead(trainer, "_apply_rollout_importance_sampling", self._weighted)
        wrapper.after(trainer, "log", self._logged)
        self._recorder.config(configuration(trainer, "ms-swift", _SETTINGS), kind="trainer_config")

    # --- One generation ---

    def _synchronized(self, *_: Any, **__: Any) -> None:
        self._loaded = self._step
        mark_weights(self._recorder, self._step)

    def _sampled(self, outputs: Sequence[Any], *_: Any, **__: Any) -> None:
        self._requests.append([engine_name(str(output.response.id)) for output in outputs])

    def _prepared(self, batches: Sequence[Mapping[str, Any]], samples: Sequence[Any], *_: Any, **__: Any) -> None:
        """Add the names of its samples to each micro-batch, in the order of ms-swift."""
        requests, self._requests = self._requests, []
        if not self._trainer.model.training:
            return
        self._generations += 1
        met = bool(os.environ.get("LOGPROBE_HOME")) and [len(names) for names in requests] == [len(samples)]
        unique = f"{os.getpid()}-{self._generations}-{self._trainer.accelerator.process_index}"
        names = requests[0] if met else [f"ms-swift-{unique}-{index}" for index in range(len(samples))]
        groups = [f"{self._step}-{self._generations}-{sample.prompt_id}" for sample in samples]
        rewards = self._rewards(len(samples))
        start = 0
        for batch in batches:
            grpo = batch["grpo_batch"]
            lost = len(samples) // len(batches)
            if not usable(self._recorder, "ms_swift", grpo, _NEEDED, spared=_SPARED, step=self._step + 1, lost=lost):
                continue
            end = start + len(grpo.completion_mask)
            part = None if rewards is None else rewards[start:end]
            setattr(grpo, _WINDOW, [other["grpo_batch"] for other in batches] if self._corrector is not None else [])
            setattr(grpo, _ATTRIBUTE, (names[start:end], groups[start:end], part, self._step, self._sampler))
            if not met and getattr(grpo, "rollout_per_token_logps", None) is not None:
                record_rollout(
                    self._recorder,
                    grpo.completion_mask,
                    token_ids=_tokens(batch["model_inputs"], grpo),
                    logprobs=grpo.rollout_per_token_logps,
                    sample_ids=names[start:end],
                    prompt_ids=groups[start:end],
                    weight_version=self._sampler,
                )
            start = end

    def _rewards(self, count: int) -> Any:
        """Return rewards [samples of this rank] from rows of all ranks with one column per function."""
        gathered = self._trainer._rewards_per_func  # noqa: SLF001 - read where its own methods leave it
        if not gathered.shape[1]:
            return None
        first = int(self._trainer.accelerator.process_index) * count
        return weighted_rewards(gathered, self._trainer.reward_weights)[first : first + count]

    # --- One micro-batch ---

    def _computed(self, result: tuple[Any, Any], *_: Any, **__: Any) -> None:
        logprobs, entropies = result
        self._forward = (logprobs.detach(), None if entropies is None else entropies.detach())

    def _begin(self, _: Any, __: Any, grpo_batch: Any) -> None:
        self._corrected = grpo_batch

    def _weighted(self, _: Any, __: Any, mask: Any) -> Any:
        """Return logprobe's importance weights [batch, time] while a correction is on, or None for ms-swift's own."""
        batch, self._corrected = self._corrected, None
        if self._corrector is None or not self._trainer.model.training:
            return None
        return self._corrector.weights(
            self._step + 1,
            lambda config: self._impossible(config, batch),
            lambda config: self._made(config, batch, mask),
        )

    def _made(self, config: CorrectionConfig, batch: Any, mask: Any) -> tuple[Correction, Any]:
        correction = self._correction(config, batch, mask)
        divisor = _DIVISORS[self._trainer.args.loss_type]
        return correction, weights_for(correction, mask, divisor, self._share_left(config, batch))

    def _impossible(self, config: CorrectionConfig, batch: Any) -> str | None:
        """Return the reason why the current loss cannot apply `config`, or None."""
        loss, ranks = self._trainer.args.loss_type, int(self._trainer.accelerator.num_processes)
        if batch is None or not hasattr(batch, _WINDOW):
            return "a fused loss, or one that is computed in pieces, does not show its batch"
        if loss not in _DIVISORS:
            return f"what loss_type={loss!r} does with importance weights is not known"
        divisor, window = _DIVISORS[loss], getattr(batch, _WINDOW)
        if divisor == "update" and (ranks > 1 or (batch.old_per_token_logps is None and len(window) > 1)):
            divisor = None  # the tokens that are left in other ranks and micro-batches are not known here
        return unmet(config, divisor=divisor, parts=ranks * int(self._trainer.args.gradient_accumulation_steps))

    def _correction(self, config: CorrectionConfig, batch: Any, mask: Any) -> Correction:
        old = self._forward[0] if batch.old_per_token_logps is None else batch.old_per_token_logps
        return correct(config, batch.rollout_per_token_logps, old, mask, advantages=batch.advantages)

    def _share_left(self, config: CorrectionConfig, batch: Any) -> Any:
        """Return the remaining share of all micro-batches' tokens (0-d tensor), or None for another divisor."""
        if _DIVISORS[self._trainer.args.loss_type] != "update" or config.denominator == "keep":
            return None
        masks = [part.completion_mask for part in getattr(batch, _WINDOW)]
        parts = zip(getattr(batch, _WINDOW), masks, strict=True)
        return share_left([self._correction(config, part, mask) for part, mask in parts], masks)

    def _unused(self) -> None:
        """Refuse a correction if ms-swift computed a loss without requesting weights."""
        step = self._step + 1
        if self._corrector is not None and self._corrected is not None and self._corrector.wanted(step) is not None:
            self._corrector.refuse(
                step, "ms-swift applies none itself: set --rollout_importance_sampling_mode token_truncate"
            )
        self._corrected = None

    def _trained(self, _: Any, __: Any, model_inputs: Mapping[str, Any], grpo_batch: Any, **___: Any) -> None:
        if not self._trainer.model.training or not hasattr(grpo_batch, _ATTRIBUTE):
            return
        self._unused()
        names, groups, rewards, version, sampler = getattr(grpo_batch, _ATTRIBUTE)
        current, entropy = self._forward
        old = grpo_batch.old_per_token_logps
        self._recorder.training(
            step=self._step + 1,  # ms-swift logs after the update
            sample_ids=names,
            prompt_ids=groups,
            token_ids=_tokens(model_inputs, grpo_batch),
            mask=grpo_batch.completion_mask,
            trainer_logprobs=current if old is None else old,
            current_logprobs=None if old is None else current,
            rollout_logprobs=getattr(grpo_batch, "rollout_per_token_logps", None),
            reference_logprobs=getattr(grpo_batch, "ref_per_token_logps", None),
            entropy=entropy,
            advantages=getattr(grpo_batch, "advantages", None),
            rewards=rewards,
            weight_version=version,
            rollout_versions=sampler,
        )

    # --- One logged step ---

    def _logged(self, _: Any, logs: Mapping[str, Any], *__: Any, **___: Any) -> None:
        """Record the scalars after ms-swift added its metrics to them."""
        record_logged(self._recorder, self._trainer, logs)


def _tokens(model_inputs: Mapping[str, Any], grpo: Any) -> Any:
    """Return tokens [batch, time] of the positions that have log-probs."""
    return model_inputs["input_ids"][:, -grpo.completion_mask.shape[1] :]


def register() -> None:
    """Register the callback ``logprobe`` with ms-swift."""
    from swift.callbacks import TrainerCallback, callbacks_map  # noqa: PLC0415 - ms-swift is the one that runs this

    class Logprobe(TrainerCallback):  # type: ignore[misc]
        """Callback that records from the beginning of training, when the trainer has its engine."""

        session: Session | None = None

        def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if self.session is None:
                self.session = Session(watch(self.trainer))
            self.session.on_train_begin(args, state)

        def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if self.session is not None:
                self.session.on_save(args, state)

        def on_train_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if self.session is not None:
                self.session.on_train_end(args, state)

    callbacks_map["logprobe"] = Logprobe


if __name__ == "__main__":
    print(Path(__file__).resolve())  # noqa: T201 - the path that --external_plugins takes
elif __name__.startswith("_swift_external_"):  # the name under which ms-swift loads an external plugin
    register()
