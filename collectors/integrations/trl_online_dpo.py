"""TRL's experimental `OnlineDPOTrainer`; `logprobe.collectors.integrations.trl.watch` records it.

Two samples per prompt, trained on at once and only once: the log-probs of the loss are the old ones, too. TRL requests none from vLLM, so the
plugin does (`LOGPROBE_VLLM_INJECT=1`), and they are joined by the engine's names. The loss does not scale logits by the sampling temperature;
vLLM's default, raw log-probs, are not scaled either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from logprobe.collectors.integrations.hf_trainer import configuration, mark_weights, record_logged, session
from logprobe.collectors.integrations.wrapping import Wrapper
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.vllm.ids import sample_ids as engine_names

METHODS: Final[dict[str, tuple[str, ...]]] = {
    "training_step": ("model", "inputs"),
    "_forward": ("model", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"),
    "_calculate_rewards_from_functions": ("prompts", "completions", "completion_ids_list"),
    "log": ("logs", "start_time"),
}
_SETTINGS: Final = (
    "top_p", "top_k", "min_p", "repetition_penalty", "loss_type", "beta", "gradient_accumulation_steps", "per_device_train_batch_size",
    "learning_rate", "max_new_tokens", "max_length", "missing_eos_penalty", "use_vllm", "vllm_mode",
)  # fmt: skip


def is_online_dpo(trainer: Any) -> bool:
    """Whether `trainer` is of this kind; no other trainer of TRL has this method."""
    return hasattr(trainer, "_calculate_rewards_from_functions")


class Watch:
    """What has to be remembered between the methods of one training step."""

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._names: list[str] = []  # that the engine gave, in TRL's order
        # Tokens, mask and log-probs: of the policy, then of the reference.
        self._forwards: list[tuple[Any, Any, Any]] = []
        self._rewards: Any = None
        self._batches = 0

    def attach(self, *, correction: bool) -> None:
        """Wraps the trainer's methods, and those of its engine."""
        if correction:
            words = "online DPO has no importance weights that a correction could set"
            self._recorder.report("correction_impossible", words, severity="warning", component="trl")
        trainer, wrapper = self._trainer, Wrapper(self._recorder, "trl")
        colocated = getattr(trainer, "llm", None)
        if callable(getattr(colocated, "generate", None)):
            wrapper.after(colocated, "generate", self._sampled)
        if trainer.args.use_vllm and callable(getattr(trainer, "_move_model_to_vllm", None)):
            wrapper.after(trainer, "_move_model_to_vllm", self._synchronized)
        wrapper.after(trainer, "_forward", self._scored)
        wrapper.after(trainer, "_calculate_rewards_from_functions", self._rewarded)
        wrapper.around(trainer, "training_step", self._begin, self._trained)
        wrapper.after(trainer, "log", self._logged)
        trainer.add_callback(session(self._recorder))
        self._recorder.config(configuration(trainer, "trl", _SETTINGS) | {"temperature": 1.0}, kind="trainer_config")

    @property
    def _version(self) -> int:
        return int(self._trainer.state.global_step)

    def _synchronized(self, *_: Any) -> None:
        mark_weights(self._recorder, self._version)

    def _begin(self, *_: Any) -> None:
        self._names, self._forwards, self._rewards = [], [], None

    def _sampled(self, outputs: Sequence[Any], *_: Any, **__: Any) -> None:
        """TRL puts the first samples of all prompts before the second ones."""
        pairs = [engine_names(output) for output in outputs]
        self._names += [names[sample] for sample in range(2) for names in pairs]

    def _scored(
        self, logprobs: Any, _: Any, __: Any, ___: Any, completion_ids: Any, completion_mask: Any, *____: Any
    ) -> None:
        self._forwards.append((completion_ids, completion_mask, logprobs.detach()))

    def _rewarded(self, rewards: Any, *_: Any, **__: Any) -> None:
        self._rewards = rewards  # TRL subtracts its penalty for missing ends in place

    def _trained(self, *_: Any) -> None:
        (tokens, mask, logprobs), *reference = self._forwards
        self._batches += 1
        unique = f"{os.getpid()}-{self._batches}-{self._trainer.accelerator.process_index}"
        met = bool(os.environ.get("LOGPROBE_HOME")) and len(self._names) == len(tokens)
        self._recorder.training(
            step=self._version + 1,  # TRL logs after the update
            sample_ids=self._names if met else [f"trl-{unique}-{row}" for row in range(len(tokens))],
            prompt_ids=[f"{unique}-{row % (len(tokens) // 2)}" for row in range(len(tokens))],
            token_ids=tokens,
            mask=mask,
            trainer_logprobs=logprobs,
            reference_logprobs=reference[0][2] if reference else None,
            rewards=self._rewards,
            weight_version=self._version,
            rollout_versions=self._version,
        )
        self._begin()

    def _logged(self, _: Any, logs: dict[str, Any], *__: Any, **___: Any) -> None:
        record_logged(self._recorder, self._trainer, logs)
