"""Adapter of SkyRL: a callback of its trainer.

    from logprobe.collectors.integrations import skyrl

    trainer.add_callback(skyrl.callback())        # LOGPROBE_HOME, LOGPROBE_RUN; before training begins

After each step the callback records the trained batch: sampled tokens, mask, both log-probs, advantages and prompt
groups. It uses the step number of SkyRL's log and adds the scalars. The trainer runs in one process and holds whole
batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from logprobe.collectors.integrations.wrapping import (
    WATCHED,
    Process,
    record_rollout,
    setting_of,
    settings_of,
    version_of,
)
from logprobe.collectors.recorder.recorder import Recorder

FIELDS: Final = ("sequences", "loss_mask", "rollout_logprobs", "action_log_probs", "advantages")
_SETTINGS: Final = {
    "trainer.algorithm": (
        "advantage_estimator", "policy_loss_type", "loss_reduction", "temperature", "eps_clip_low", "eps_clip_high",
        "use_kl_loss",
    ),
    "trainer": ("strategy", "bf16", "train_batch_size", "policy_mini_batch_size", "update_epochs_per_batch"),
    "generator": ("n_samples_per_prompt", "step_wise_trajectories"),
    "generator.sampling_params": ("temperature", "top_p", "top_k", "min_p"),
    "generator.inference_engine": ("enable_prefix_caching", "enable_return_routed_experts"),
    "trainer.fully_async": ("enabled", "max_staleness_steps"),
    "trainer.policy.optimizer_config": ("lr", "max_grad_norm"),
    "trainer.policy.megatron_config": ("moe_enable_routing_replay",),
    "trainer.algorithm.off_policy_correction": ("tis_ratio_type",),
}  # fmt: skip


def callback() -> Any:
    """Return a recording `TrainingCallback` of SkyRL. Without ``LOGPROBE_HOME`` the callback only warns."""
    from skyrl.train.utils.callbacks import TrainingCallback  # noqa: PLC0415 - the trainer has loaded it

    class Logprobe(TrainingCallback):  # type: ignore[misc]
        """Adapter of SkyRL's events."""

        def __init__(self) -> None:
            self.watch = Watch()

        def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:  # noqa: ARG002
            self.watch.step_ended(trainer, callback_input)

        def on_log(self, trainer: Any, callback_input: Any, control: Any) -> None:  # noqa: ARG002
            self.watch.logged(callback_input)

        def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:  # noqa: ARG002
            self.watch.ended()

    return Logprobe()


class Watch:
    """Recorder of SkyRL's events."""

    def __init__(self) -> None:
        self.process = Process("skyrl", title=f"SkyRL {version_of('skyrl')}")

    def step_ended(self, trainer: Any, event: Any) -> None:
        """Record the trained batch of this step."""
        with self.process.guard("step"):
            recorder = self._begin(trainer)
            if recorder is None or event.batch is None:
                return
            step = int(event.global_step)
            if self.process.has(event.batch, FIELDS, step):
                self._record(recorder, trainer, step, event.batch)

    def logged(self, event: Any) -> None:
        """Record the scalars that SkyRL logs."""
        with self.process.guard("log"):
            self.process.scalars(event.global_step, event.logs or {}, without=("eval/",))

    def ended(self) -> None:
        """Make all records durable."""
        self.process.flush()

    def _begin(self, trainer: Any) -> Recorder | None:
        if getattr(trainer, WATCHED, self) is not self:  # another callback records this trainer
            return None
        setattr(trainer, WATCHED, self)
        return self.process.begin(
            setting_of(trainer.cfg, "trainer.run_name"),
            trainer=type(trainer).__name__,
            config=lambda: _configuration(trainer),
        )

    def _record(self, recorder: Recorder, trainer: Any, step: int, batch: Mapping[str, Any]) -> None:
        metadata = getattr(batch, "metadata", None) or {}
        rows = len(batch["sequences"]) - int(metadata.get("pad_size") or 0)
        mask = batch["loss_mask"][:rows]
        tokens = batch["sequences"][:rows, -mask.shape[1] :]  # responses are right-aligned
        old, rollout = (
            None if batch[name] is None else batch[name][:rows] for name in ("action_log_probs", "rollout_logprobs")
        )
        names = [f"skyrl-{step}-{row}" for row in range(rows)]
        groups = _groups(metadata.get("policy_prompt_boundaries"), step, rows)
        sampled_by = None if _asynchronous(trainer) else step - 1
        if old is None:
            if rollout is not None:
                record_rollout(
                    recorder,
                    mask > 0,
                    token_ids=tokens,
                    logprobs=rollout,
                    sample_ids=names,
                    prompt_ids=groups,
                    weight_version=sampled_by,
                )
            words = (
                "SkyRL skipped the policy's forward pass, because its loss uses the engine's log-probs: nothing can be "
                "compared"
            )
            self.process.incomparable(step, words)
            return
        advantages, reference = batch["advantages"], batch.get("base_action_log_probs")
        recorder.training(
            step=step,
            sample_ids=names,
            prompt_ids=groups,
            token_ids=tokens,
            mask=mask,
            trainer_logprobs=old,
            rollout_logprobs=rollout,
            advantages=None if advantages is None else advantages[:rows],
            reference_logprobs=None if reference is None else reference[:rows],
            rollout_versions=sampled_by,
            weight_version=step - 1,  # step s trains what step s - 1 left
        )


def _asynchronous(trainer: Any) -> bool:
    """Return whether samples may come from older weights, which SkyRL does not state per sample."""
    return any("Async" in kind.__name__ for kind in type(trainer).__mro__)


def _groups(boundaries: Sequence[Sequence[int]] | None, step: int, rows: int) -> list[str] | None:
    """Return a group per row, from the prompt boundaries that SkyRL keeps.

    SkyRL drops the prompt ids before its callback.
    """
    names = [
        f"{step}-{index}" for index, (start, end) in enumerate(boundaries or []) for _ in range(int(start), int(end))
    ]
    return names if len(names) == rows else None


def _configuration(trainer: Any) -> dict[str, object]:
    settings = settings_of(trainer.cfg, _SETTINGS)
    temperature = settings.get("trainer.algorithm.temperature")
    document = {
        "framework": "skyrl",
        "framework_version": version_of("skyrl"),
        "trainer": type(trainer).__name__,
        "temperature": settings["generator.sampling_params.temperature"] if temperature is None else temperature,
        "compute_dtype": {True: "bfloat16", False: "float32"}.get(settings["trainer.bf16"]),
    }
    return document | {name: value for name, value in settings.items() if isinstance(value, str | int | float)}
