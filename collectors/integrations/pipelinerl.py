"""Adapter of PipelineRL: `logprobe run` wraps the functions that compute the loss, send weights to engines, and log.

`rl_step` keeps the trainer's log-probs in a local variable. The adapter therefore computes them again, by the same
operations, from the logits that the model returned. It processes a few hundred tokens at a time, because a training
step has no spare memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from logprobe.collectors.integrations.frameworks import python_path
from logprobe.collectors.integrations.wrapping import Process, version_of
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.weights import mark

_PROCESS: Final = Process("pipelinerl", title=f"pipelinerl {version_of('pipelinerl')}")
_CHUNK: Final = 256  # tokens whose logits are looked at together
_NO_LABEL: Final = -100
_IN_PIECES: Final = (
    "each rank has a piece of every sequence (finetune.seq_parallel), and sequences are not put together: set it to 1 "
    "to have them recorded"
)


@dataclass
class _Pass:
    """Call of `rl_step`: a micro-batch and the model's output."""

    batch: Any
    config: Any
    in_pieces: bool
    hook: Any = None
    logits: Any = None  # [batch, time, vocabulary]

    def keep(self, _: Any, __: Any, output: Any) -> None:
        self.logits = output.logits


@dataclass
class _Progress:
    """State between calls in one process."""

    step: int | None = None  # that is trained now
    recorded: int = 0  # sequences of it so far
    sent: int | None = None  # the version that the engines got since the last step
    trained: int | None = None  # the version of the weights that are trained now; None: PipelineRL has not named it
    current: _Pass | None = None

    def begin(self, step: int) -> None:
        """Begin a micro-batch of `step`."""
        if step != self.step:
            self.step, self.recorded, self.trained, self.sent = step, 0, self.sent, None

    def names(self, count: int) -> list[str]:
        """Return names for the next `count` sequences."""
        start, self.recorded = self.recorded, self.recorded + count
        return [f"pipelinerl-{_rank()}-{self.step}-{index}" for index in range(start, start + count)]


_NOW: Final = _Progress()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


# --- The launcher ---


def world(module: ModuleType) -> None:
    """Watch `pipelinerl.world` and add the hooks to ``PYTHONPATH``, which its launcher replaces for child processes."""
    if _PROCESS.knows(getattr(module, "WorldMap", None), {"__init__": ()}):
        _PROCESS.before(module.WorldMap, "__init__", _keep_hooks)


def _keep_hooks(*_: Any, **__: Any) -> None:
    os.environ["PYTHONPATH"] = python_path(os.environ)


# --- Weights and scalars ---


def weights(module: ModuleType) -> None:
    """Watch `pipelinerl.finetune_loop` for weights sent to engines. Their version is the number of trained samples."""
    manager = getattr(module, "WeightUpdateManager", None)
    if _PROCESS.knows(manager, {"send_weight_update": ("version",)}):
        _PROCESS.after(manager, "send_weight_update", _sent)


def _sent(_: Any, __: Any, version: int) -> None:
    _NOW.sent = int(version)
    recorder = _PROCESS.begin()
    if recorder is not None and _rank() == 0:
        mark(_NOW.sent, step=_NOW.step, recorder=recorder, home=recorder.home, run=recorder.run)


def scalars(module: ModuleType) -> None:
    """Watch `pipelinerl.finetune.logging_` for means over all ranks, which the main process logs."""
    if _PROCESS.knows(module, {"log_metrics": ("completed_steps", "metrics")}):
        _PROCESS.after(module, "log_metrics", _logged)


def _logged(_: Any, __: Any, completed_steps: int, metrics: Mapping[str, Any]) -> None:
    if _rank() == 0:
        _PROCESS.scalars(completed_steps, metrics)


# --- Micro-batches ---


def loss(module: ModuleType) -> None:
    """Watch `pipelinerl.finetune.rl` for every micro-batch of the trainer."""
    parameters = ("model", "batch", "current_step", "config", "seq_parallel_group")
    if _PROCESS.knows(module, {"rl_step": parameters}):
        _PROCESS.before(module, "rl_step", _begin)
        _PROCESS.after(module, "rl_step", _end)


def _begin(model: Any, batch: Any, current_step: int, _: Any, config: Any, seq_parallel_group: Any = None) -> None:
    _forget()
    _NOW.begin(int(current_step) + 1)  # PipelineRL logs a step after it has counted it
    if not batch.sentinel:  # these have no tokens to train on
        _NOW.current = _Pass(batch, config, seq_parallel_group is not None)
        _NOW.current.hook = model.register_forward_hook(_NOW.current.keep)


def _forget() -> _Pass | None:
    """Clear the finished call and return it, or None if there is none."""
    done, _NOW.current = _NOW.current, None
    if done is not None:
        done.hook.remove()
    return done


def _end(*_: Any, **__: Any) -> None:
    done, recorder = _forget(), _PROCESS.begin()
    if recorder is None or done is None:
        return
    if _NOW.recorded == 0:
        recorder.config(_configuration(done.config), kind="trainer_config")
    if done.in_pieces:
        _PROCESS.incomparable(_NOW.step or 0, _IN_PIECES)
        return
    _record(recorder, done)


def _configuration(config: Any) -> dict[str, object]:
    return {"framework": "pipelinerl", "framework_version": version_of("pipelinerl"), **config.model_dump()}


def _record(recorder: Recorder, done: _Pass) -> None:
    batch, mask = done.batch, done.batch.labels != _NO_LABEL
    mask[:, 0] = False  # nothing predicts the first token
    pulled = done.config.kl_coef or done.config.final_kl_coef  # else what the batch holds is a placeholder
    columns = {
        "token_ids": batch.input_ids,
        "mask": mask,
        "trainer_logprobs": _chosen(done.logits, batch.input_ids, done.config.temperature),
        "rollout_logprobs": batch.old_logprobs,
        "reference_logprobs": batch.ref_logprobs if pulled else None,
        "advantages": batch.advantages,
    }
    first = batch.attention_mask.argmax(1, keepdim=True)  # all tokens of a sequence have its reward, padding has 0
    rewards = batch.rewards.gather(1, first)[:, 0]
    if batch.is_packed:
        starts = batch.seq_boundaries.tolist()
        parts = _trained(mask[0].tolist(), starts)
        columns = {
            name: None if value is None else [value[0][part] for part in parts] for name, value in columns.items()
        }
        rewards = batch.rewards[0][starts[:-1]]
    names = _NOW.names(len(rewards))
    recorder.training(step=_NOW.step or 0, sample_ids=names, rewards=rewards, weight_version=_NOW.trained, **columns)


def _trained(mask: list[bool], starts: list[int]) -> list[slice]:
    """Return the slice from the first to the last trained token of each packed sequence.

    >>> _trained([False, True, True, False, False, True], [0, 3, 5, 6])
    [slice(1, 3, None), slice(3, 3, None), slice(5, 6, None)]
    """
    slices = []
    for start, end in itertools.pairwise(starts):
        places = [index for index in range(start, end) if mask[index]] or [start, start - 1]
        slices.append(slice(places[0], places[-1] + 1))
    return slices


def _chosen(logits: Any, tokens: Any, temperature: float) -> Any:
    """Return the log-prob of each token [batch, time], 0 for the first, by the operations of `rl_step`."""
    import torch  # noqa: PLC0415 - whoever has a model has loaded it

    chosen = torch.zeros(tokens.shape, dtype=torch.float32, device=logits.device)
    with torch.no_grad():
        for start in range(0, tokens.shape[1] - 1, _CHUNK):
            after = slice(start + 1, min(start + 1 + _CHUNK, tokens.shape[1]))
            part = logits[:, start : after.stop - 1] / temperature
            chosen[:, after] = part.gather(2, tokens[:, after, None])[..., 0] - part.logsumexp(-1)
    return chosen
