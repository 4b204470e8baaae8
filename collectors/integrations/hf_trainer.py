"""Shared code for trainers built on the Hugging Face `Trainer`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.collectors import weights
from logprobe.collectors.integrations.wrapping import version_of
from logprobe.collectors.recorder.recorder import Recorder

_CHECKPOINT: Final = re.compile(r"checkpoint-([0-9]+)")  # a folder of a Hugging Face trainer


def configuration(trainer: Any, framework: str, settings: Sequence[str]) -> dict[str, object]:
    """Return the trainer's configuration document: its arguments named in `settings`, and its compute dtype."""
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
    """Return weighted sums [samples] of [samples, functions]. NaN marks functions that do not apply."""
    rewards = (rewards_per_function * function_weights.to(rewards_per_function.device)).nansum(dim=1)
    rewards[rewards_per_function.isnan().all(dim=1)] = float("nan")
    return rewards


def record_logged(recorder: Recorder, trainer: Any, logs: Mapping[str, Any]) -> None:
    """Record the scalars of a step that a trainer logged, except those of evaluation.

    They are means over all ranks, so one rank records them.
    """
    evaluated = any(key.startswith("eval_") for key in logs)
    if evaluated or "train_runtime" in logs or not trainer.is_world_process_zero():
        return
    scalars = {key: value for key, value in logs.items() if isinstance(value, int | float)}
    recorder.step(int(trainer.state.global_step), scalars)


class Session:
    """Recorder of the start, checkpoints and end of a training. Its methods are those of a callback."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._there: frozenset[int] = frozenset()  # steps whose checkpoints were there at the last look

    def on_train_begin(self, settings: Any, state: Any, *_: Any, **__: Any) -> None:
        """Record the step at which training begins, from the trainer's arguments `settings` and its `state`."""
        with self._recorder.guard("train_begin"):
            step = int(state.global_step)
            self._recorder.begins(step + 1)
            self._look(settings, state)
            if step in self._there:  # where it goes on; this run may not have saved it
                self._recorder.checkpoint(step, _folder(settings, step))

    def on_save(self, settings: Any, state: Any, *_: Any, **__: Any) -> None:
        """Record the saved checkpoint."""
        with self._recorder.guard("save"):
            step = int(state.global_step)
            self._look(settings, state)
            if state.is_world_process_zero:
                self._recorder.checkpoint(step, _folder(settings, step) if step in self._there else None)

    def on_train_end(self, settings: Any, state: Any, *_: Any, **__: Any) -> None:
        """Record deleted checkpoints and make all records durable."""
        self._look(settings, state)
        self._recorder.flush()

    def _look(self, settings: Any, state: Any) -> None:
        """List the checkpoints in the trainer's folder, since a save may delete older ones. Ignore read errors."""
        with self._recorder.guard("checkpoints"):
            if not state.is_world_process_zero:
                return
            try:
                names = [path.name for path in Path(settings.output_dir).iterdir()]
            except FileNotFoundError:  # nothing was saved yet
                names = []
            there = frozenset(int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name)))
            for step in sorted(self._there - there):
                self._recorder.checkpoint(step, deleted=True)
            self._there = there


def _folder(settings: Any, step: int) -> Path:
    return Path(settings.output_dir).absolute() / f"checkpoint-{step}"


def session(recorder: Recorder) -> Any:
    """Return a `Session` that is a callback of the Hugging Face trainer."""
    from transformers import TrainerCallback  # noqa: PLC0415 - the trainer has loaded it

    class Callback(Session, TrainerCallback):  # type: ignore[misc]
        """Session as the trainer's callback. `TrainerCallback` ignores events without a method in `Session`."""

    return Callback(recorder)


def mark_weights(recorder: Recorder, version: int) -> None:
    """Mark that the engines of this run have the weights of optimizer step `version`."""
    weights.mark(version, step=version, recorder=recorder, home=recorder.home, run=recorder.run)
