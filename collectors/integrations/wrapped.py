"""Adapters of OpenRLHF, ROLL, AReaL and rllm: `logprobe run` wraps the method that has both log-probs.

These frameworks have no extension point. Each function receives an imported framework module and wraps known methods.
Unknown methods stay unchanged, with a health record.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from logprobe.collectors.integrations.hf_trainer import mark_weights
from logprobe.collectors.integrations.wrapping import Process, rows_of, version_of


def _process(framework: str) -> Process:
    return Process(framework, title=f"{framework} {version_of(framework)}")


def _record(process: Process, step: int, version: int | None, rows: Mapping[str, Any], sampled_by: Any = None) -> None:
    """Record padded `rows` of `Recorder.training`, trained by weights `version`.

    `sampled_by`: versions that sampled, as `rollout_versions` of `Recorder.training`.
    """
    recorder = process.begin()
    if recorder is not None and rows["trainer_logprobs"] is None:
        words = "the trainer has no log-probs of its own before the update: nothing can be compared"
        process.incomparable(step, words)
    elif recorder is not None:
        recorder.training(step=step, weight_version=version, rollout_versions=sampled_by, **rows)


def _named(framework: str, step: int, count: int, start: int = 0) -> list[str]:
    return [f"{framework}-{step}-{index}" for index in range(start, start + count)]


# --- OpenRLHF: one driver, a list of micro-batches; log-probs [batch, time - 1], of the token one further on ---

_OPENRLHF: Final = _process("openrlhf")


def openrlhf_trainer(module: ModuleType) -> None:
    """Watch `openrlhf.trainer.ppo_trainer` for the trained step and the transfer of weights."""
    trainer = getattr(module, "BasePPOTrainer", None)
    if _OPENRLHF.knows(trainer, {"train_step": ("global_step",), "broadcast_to_vllm": ()}):
        _OPENRLHF.before(trainer, "train_step", _openrlhf_step)
        _OPENRLHF.after(trainer, "broadcast_to_vllm", _openrlhf_sent)


def _openrlhf_step(_: Any, __: Any, global_step: int) -> None:
    _OPENRLHF.step = int(global_step) + 1  # OpenRLHF logs a step after it has counted it


def _openrlhf_sent(_: Any, *__: Any) -> None:
    if _OPENRLHF.recorder is not None and _OPENRLHF.step is not None:
        mark_weights(_OPENRLHF.recorder, _OPENRLHF.step)


def openrlhf(module: ModuleType) -> None:
    """Watch `openrlhf.trainer.ppo_utils.experience_maker` for batches with both log-probs."""
    maker = getattr(module, "RemoteExperienceMaker", None)
    if _OPENRLHF.knows(maker, {"make_experience_batch": ("rollout_samples",)}):
        _OPENRLHF.after(maker, "make_experience_batch", _openrlhf_batches)


def _openrlhf_batches(experiences: Sequence[Any], *_: Any, **__: Any) -> None:
    step = _OPENRLHF.step
    if step is None:
        return
    start = 0
    for experience in experiences:
        needed = ("sequences", "action_mask", "action_log_probs", "rollout_log_probs", "advantages")
        if not _OPENRLHF.has(experience, needed, step):
            continue
        count = len(experience.sequences)
        rows = {
            "sample_ids": _named("openrlhf", step, count, start),
            "token_ids": experience.sequences[:, -experience.action_mask.shape[1] :],
            "mask": experience.action_mask,
            "trainer_logprobs": experience.action_log_probs,
            "rollout_logprobs": experience.rollout_log_probs,
            "reference_logprobs": experience.base_action_log_probs,
            "advantages": experience.advantages,
            "rewards": experience.rewards,
        }
        _record(_OPENRLHF, step, step - 1, rows)
        start += count


# --- ROLL: one driver, a DataProto; log-probs [batch, time - 1] ---

_ROLL: Final = _process("roll")


def roll(module: ModuleType) -> None:
    """Watch `roll.utils.train_infer_corrections`, which is called with each batch before training."""
    name = "apply_train_infer_correction_to_batch"
    if _ROLL.knows(module, {name: ("batch", "stat_mask_key")}):
        _ROLL.before(module, name, _roll_batch)


def _roll_batch(_: Any, batch: Any, stat_mask_key: str = "response_mask", *__: Any, **___: Any) -> None:
    columns, step = batch.batch, int(batch.meta_info["global_step"])
    if not _ROLL.has(columns, ("input_ids", stat_mask_key, "old_log_probs", "infer_logprobs"), step):
        return
    rows = {
        "sample_ids": _named("roll", step, len(columns["input_ids"])),
        "token_ids": columns["input_ids"][:, 1:],
        "mask": columns[stat_mask_key][:, 1:],
        "trainer_logprobs": columns.get("old_log_probs"),
        "rollout_logprobs": columns.get("infer_logprobs"),
        "advantages": columns.get("advantages"),
        "rewards": columns.get("response_level_rewards"),
    }
    _record(_ROLL, step, step, rows)  # step s, from 0, trains what s updates left


# --- AReaL: every rank has its part; the sampler's log-probs are the token's own, the trainer's one place earlier ---

_AREAL: Final = _process("areal")


def areal(module: ModuleType) -> None:
    """Watch `areal.trainer.ppo.actor` for trajectories with the versions of each token."""
    actor = getattr(module, "PPOActor", None)
    if _AREAL.knows(actor, {"compute_advantages": ("data",)}):
        _AREAL.before(actor, "compute_advantages", _areal_batch)


def _areal_batch(actor: Any, data: Sequence[Mapping[str, Any]]) -> None:
    if not actor.engine.is_data_parallel_head():  # the other ranks of its group have the same trajectories
        return
    version = int(actor.engine.get_version())
    rank, start = int(getattr(actor.engine, "data_parallel_rank", 0)), 0
    for group, trajectory in enumerate(data):
        if not _AREAL.has(trajectory, ("input_ids", "loss_mask", "logprobs"), version):
            continue
        count, mask, prox = len(trajectory["input_ids"]), trajectory["loss_mask"], trajectory.get("prox_logp")
        rows = {
            "sample_ids": _named(f"areal-{rank}", version, count, start),
            "prompt_ids": [f"{version}-{rank}-{group}"] * count,
            "token_ids": trajectory["input_ids"],
            "mask": mask,
            "trainer_logprobs": None if prox is None else prox.roll(1, -1),
            "rollout_logprobs": trajectory["logprobs"],
            "rewards": trajectory.get("rewards"),
        }
        _record(_AREAL, version, version, rows, trajectory.get("versions"))
        start += count


# --- rllm: verl's batch in a loop of its own ---

_RLLM: Final = _process("rllm")


def rllm(module: ModuleType) -> None:
    """Watch `rllm.trainer.verl.verl_backend` for the batch after its advantages."""
    backend = getattr(module, "VerlBackend", None)
    if not _RLLM.knows(backend, {"compute_advantages": ("trainer_state",)}) or backend is None:
        return
    original = backend.compute_advantages
    if not inspect.iscoroutinefunction(original):
        _RLLM.after(backend, "compute_advantages", lambda _, __, trainer_state, *___: _rllm_batch(trainer_state))
        return

    @functools.wraps(original)
    async def watched(self: Any, trainer_state: Any, *arguments: Any, **named: Any) -> Any:
        result = await original(self, trainer_state, *arguments, **named)
        with _RLLM.guard("compute_advantages"):
            _rllm_batch(trainer_state)
        return result

    backend.compute_advantages = watched


def _rllm_batch(state: Any) -> None:
    batch, step = state.backend_batch, int(state.global_step)
    columns, padded = batch.batch, batch.non_tensor_batch.get("is_pad_step")
    keep = [index for index in range(rows_of(columns)) if padded is None or not padded[index]]
    if not _RLLM.has(columns, ("responses", "response_mask", "old_log_probs"), step, len(keep)):
        return
    rows: dict[str, Any] = {
        "token_ids": columns["responses"][keep],
        "mask": columns["response_mask"][keep],
        "sample_ids": [f"rllm-{step}-{index}" for index in keep],
    }
    names = {"trainer_logprobs": "old_log_probs", "rollout_logprobs": "rollout_log_probs", "advantages": "advantages"}
    for ours, theirs in names.items():
        column = columns.get(theirs)
        rows[ours] = None if column is None else column[keep]
    if _are_copies(rows["trainer_logprobs"], rows["rollout_logprobs"], rows["mask"]):
        rows["trainer_logprobs"] = None  # bypass mode: the same numbers twice are no comparison
    _record(_RLLM, step, step - 1, rows)


def _are_copies(old: Any, rollout: Any, mask: Any) -> bool:
    """Return whether two tensors [batch, time] are equal under the mask, with NaN in the same places."""
    if old is None or rollout is None:
        return False
    both_nan = (old != old) & (rollout != rollout)  # noqa: PLR0124 - NaN is what differs from itself
    return bool(((old == rollout) | both_nan | (mask == 0)).all())
