"""What the trainers built on the Hugging Face `Trainer` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logprobe.collectors import weights
from logprobe.collectors.integrations.wrapping import version_of
from logprobe.collectors.recorder.recorder import Recorder


def configuration(trainer: Any, framework: str, settings: Sequence[str]) -> dict[str, Any]:
    """The trainer's configuration document: its own arguments of the names `settings`, and what it computes in."""
    mixed = str(getattr(trainer.accelerator, "mixed_precision", "no"))
    dtype = str(getattr(trainer.model, "dtype", "")).removeprefix("torch.")
    return {
        "framework": framework,
        "framework_version": version_of(framework),
        "trainer": type(trainer).__name__,
        "compute_dtype": dtype if mixed == "no" else {"bf16": "bfloat16", "fp16": "float16"}.get(mixed, mixed),
        "ranks": int(trainer.accelerator.num_processes),
        **{key: getattr(trainer.args, key) for key in settings if hasattr(trainer.args, key)},
    }


def weighted_rewards(rewards_per_function: Any, function_weights: Any) -> Any:
    """[samples], weighted sums of [samples, functions]. NaN: a function does not apply to a sample, or none does."""
    rewards = (rewards_per_function * function_weights.to(rewards_per_function.device)).nansum(dim=1)
    rewards[rewards_per_function.isnan().all(dim=1)] = float("nan")
    return rewards


def record_logged(recorder: Recorder, trainer: Any, logs: Mapping[str, Any]) -> None:
    """The scalars of a step that a trainer has logged: means over all ranks, so one rank records them. Evaluation is left out."""
    evaluated = any(key.startswith("eval_") for key in logs)
    if evaluated or "train_runtime" in logs or not trainer.is_world_process_zero():
        return
    scalars = {key: value for key, value in logs.items() if isinstance(value, int | float)}
    recorder.step(int(trainer.state.global_step), scalars)


def session(recorder: Recorder) -> Any:
    """A callback that says where training begins, and makes everything durable when it ends."""
    from transformers import TrainerCallback  # noqa: PLC0415 - whoever has a trainer has loaded it

    class Session(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            recorder.begins(int(state.global_step) + 1)

        def on_save(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.is_world_process_zero:
                recorder.checkpoint(int(state.global_step))

        def on_train_end(self, *_: Any, **__: Any) -> None:
            recorder.flush()

    return Session()


def mark_weights(recorder: Recorder, version: int) -> None:
    """The engines of this run have the weights that optimizer step `version` left."""
    weights.mark(version, step=version, recorder=recorder, home=recorder.home, run=recorder.run)
