"""Adapter of slime: three functions for its options.

    --custom-rollout-log-function-path logprobe.collectors.integrations.slime.rollout
    --rollout-data-postprocess-path logprobe.collectors.integrations.slime.train
    --get-mismatch-metrics --custom-tis-function-path logprobe.collectors.integrations.slime.tis

`rollout` records the engines' samples in the rollout manager. `train` records the trainer's log-probs on one rank of
each data-parallel group. `tis` applies logprobe's correction while the controller has one on. The step is slime's
rollout id.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.collectors.integrations.correcting import Corrector, unmet
from logprobe.collectors.integrations.wrapping import Process
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.sglang import version_name

_SETTINGS: Final = (
    "advantage_estimator", "rollout_temperature", "rollout_top_p", "rollout_top_k", "n_samples_per_prompt",
    "rollout_batch_size", "global_batch_size", "num_steps_per_rollout", "eps_clip", "eps_clip_high", "kl_loss_coef",
    "entropy_coef", "use_tis", "tis_clip", "tis_clip_low", "use_rollout_logprobs", "get_mismatch_metrics",
    "true_on_policy_mode",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "update_weights_interval",
    "lr", "bf16", "fp16", "partial_rollout", "mask_offpolicy_in_partial_rollout", "use_rollout_routing_replay",
)  # fmt: skip

_NEEDED: Final = ("tokens", "response_lengths", "loss_masks", "sample_indices")
_SEVERAL: Final = 2  # micro-batches and ranks; how many is not known in the loss


@dataclass(frozen=True)
class Place:
    """Position of this process in the trainer's parallelism."""

    records: bool  # the one of its data-parallel group that has log-probs
    pieces: int  # into which context parallelism cuts each sequence


class Adapter:
    """Hooks of slime in one process. miles and vime have the same data under other names."""

    def __init__(self, framework: str) -> None:
        self.process = Process(framework)
        self._corrector: Corrector | None = None

    def _begin(self, args: Any) -> Recorder | None:
        return self.process.begin(getattr(args, "wandb_group", None), config=lambda: self._configuration(args))

    def _configuration(self, args: Any) -> dict[str, object]:
        settings = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name, None) is not None}
        document = {"framework": self.process.name, "temperature": settings.get("rollout_temperature"), **settings}
        dtypes = [name for flag, name in (("bf16", "bfloat16"), ("fp16", "float16")) if settings.get(flag)]
        return document | ({"compute_dtype": dtypes[0]} if len(dtypes) == 1 else {})

    # --- What the engines sampled ---

    def rollout(self, rollout_id: int, args: Any, samples: Iterable[Any], *_: Any, **__: Any) -> bool:
        """Record the samples of one rollout. Return False, so that the framework also logs them as usual."""
        with self.process.guard("rollout"):
            recorder, flat = self._begin(args), list(_flat(samples))
            flat = [sample for sample in flat if sample.rollout_log_probs is not None and sample.response_length]
            if recorder is not None and flat:
                self._record_rollout(recorder, int(rollout_id), args, flat)
        return False

    def _record_rollout(self, recorder: Recorder, step: int, args: Any, samples: Sequence[Any]) -> None:
        masks = [_sampled(sample) for sample in samples]
        prompts = [len(sample.tokens) - sample.response_length for sample in samples]
        recorder.rollout(
            sample_ids=_names(step, [sample.index for sample in samples]),
            token_ids=[_under(s.tokens[-s.response_length :], mask) for s, mask in zip(samples, masks, strict=True)],
            logprobs=[_under(s.rollout_log_probs, mask) for s, mask in zip(samples, masks, strict=True)],
            weight_version=[_version(sample.weight_versions) for sample in samples],
            prompt_ids=None
            if samples[0].group_index is None
            else [f"{step}/{sample.group_index}" for sample in samples],
            prompt_lengths=prompts,
            cached_prefix_tokens=[_cached(sample, length) for sample, length in zip(samples, prompts, strict=True)],
            finish_reasons=[str(getattr(sample.status, "value", sample.status)) for sample in samples],
            sampling={name: getattr(args, f"rollout_{name}", None) for name in ("temperature", "top_p", "top_k")},
        )

    # --- What the trainer computed ---

    def train(self, args: Any, rollout_id: int, data: Mapping[str, Any], place: Place) -> None:
        """Record one rank's part of a rollout before training."""
        with self.process.guard("train"):
            step = self.process.step = int(rollout_id)
            recorder = self._begin(args) if place.records else None
            if recorder is None or not self.process.has(data, _NEEDED, step):
                return
            problem = self._unreadable(data, place)
            if problem is not None:
                self.process.incomparable(step, problem)
                return
            self._record_training(recorder, step, args, data)

    def _unreadable(self, data: Mapping[str, Any], place: Place) -> str | None:
        if place.pieces > 1:
            return (
                "context parallelism cuts sequences into pieces: nothing is recorded here; import the files of "
                "--save-debug-train-data"
            )
        if not data.get("log_probs"):
            return (
                "no log-probs before the update: start with --get-mismatch-metrics and --custom-tis-function-path "
                "(docs/frameworks.md)"
            )
        return None

    def _record_training(self, recorder: Recorder, step: int, args: Any, data: Mapping[str, Any]) -> None:
        lengths = [int(length) for length in data["response_lengths"]]
        rewards = data.get("local_raw_reward", data.get("rewards"))
        recorder.training(
            step=step,
            sample_ids=_names(step, data["sample_indices"]),
            token_ids=[tokens[-length:] for tokens, length in zip(data["tokens"], lengths, strict=True)],
            mask=data["loss_masks"],
            trainer_logprobs=data["log_probs"],
            rollout_logprobs=data.get("rollout_log_probs"),
            reference_logprobs=data.get("ref_log_probs"),
            teacher_logprobs=_ends(data.get("teacher_log_probs"), lengths),
            advantages=data.get("advantages"),
            rewards=[float(reward) for reward in rewards] if _numbers(rewards) else None,
            weight_version=_trained_version(args, step) if self.process.name == "slime" else None,
        )

    # --- Correction ---

    def tis(self, args: Any, vanilla: str, named: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any]]:
        """Return loss per token, masks and metrics, for the framework's TIS option.

        The weights are logprobe's while a correction is on, else the framework's own if it is configured to apply them.
        """
        corrected = None
        with self.process.guard("tis"):
            corrected = self._corrected(args, named)
        if corrected is not None:
            return corrected
        if getattr(args, "use_tis", False):
            module, _, name = vanilla.rpartition(".")
            own: tuple[Any, Any, Mapping[str, Any]] = getattr(importlib.import_module(module), name)(args, **named)
            return own
        return named["pg_loss"], named["loss_masks"], {}

    def _corrected(self, args: Any, named: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any]] | None:
        recorder, step = self._begin(args), self.process.step
        if recorder is None or step is None:
            return None
        if self._corrector is None:
            self._corrector = Corrector(recorder, self.process.name)
        weights = self._corrector.weights(
            step, lambda config: _impossible(config, args), lambda config: _made(config, named)
        )
        return None if weights is None else (named["pg_loss"] * weights, named["loss_masks"], {})


def _impossible(config: CorrectionConfig, args: Any) -> str | None:
    """Return the reason why the loss cannot apply `config`, or None.

    The framework divides by a token count from before the correction.
    """
    if getattr(args, "context_parallel_size", 1) > 1:
        return "context parallelism cuts sequences into pieces"
    return unmet(config, divisor=None, parts=_SEVERAL, advantages=False)


def _made(config: CorrectionConfig, named: Mapping[str, Any]) -> tuple[Correction, Any]:
    import torch  # noqa: PLC0415 - the trainer has loaded it

    correction = correct(
        config, list(named["rollout_log_probs"]), list(named["train_log_probs"]), list(named["loss_masks"])
    )
    return correction, torch.cat([row.to(named["pg_loss"].dtype) for row in correction.weights])


def _flat(samples: Iterable[Any]) -> Iterator[Any]:
    for sample in samples:
        if isinstance(sample, list | tuple):
            yield from _flat(sample)
        else:
            yield sample


def _sampled(sample: Any) -> list[int]:
    """Return the mask of sampled tokens. Tool output is excluded, since its log-prob of 0.0 does not mean certainty."""
    if sample.loss_mask is None or sample.remove_sample:
        return [1] * sample.response_length
    return list(sample.loss_mask)


def _under(values: Sequence[Any], mask: Sequence[int]) -> list[Any]:
    return [value for value, flag in zip(values, mask, strict=True) if flag]


def _cached(sample: Any, prompt_length: int) -> int | None:
    """Return the prompt's tokens from the prefix cache, or None if slime summed several turns."""
    info = getattr(sample, "prefix_cache_info", None)
    return int(info.cached_tokens) if info is not None and info.total_prompt_tokens == prompt_length else None


def _names(step: int, indices: Sequence[Any]) -> list[str]:
    """Return names that rollout manager and trainers share. Parts of one sample are numbered."""
    seen: Counter[str] = Counter()
    names = []
    for index in indices:
        name = f"{step}/{int(index)}"
        names.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _version(versions: Sequence[Any]) -> str | None:
    """Return the version that sampled, or None if there are several or an unnamed one.

    >>> _version(["5", "5"]), _version(["5", "6"]), _version([None]), _version([])
    ('5', None, None, None)
    """
    distinct = {version_name(version) for version in versions}
    return distinct.pop() if len(distinct) == 1 else None


def _trained_version(args: Any, step: int) -> str | None:
    """Return the version in training, or None if an update does not follow every rollout.

    Engines count updates from 1, before the first rollout.
    """
    start = getattr(args, "start_rollout_id", None)
    return (
        str(step - int(start) + 1)
        if start is not None and getattr(args, "update_weights_interval", None) == 1
        else None
    )


def _numbers(rewards: Any) -> bool:
    return rewards is not None and all(isinstance(reward, int | float) or hasattr(reward, "item") for reward in rewards)


def _ends(rows: Sequence[Any] | None, lengths: Sequence[int]) -> list[Any] | None:
    """Return the last `lengths` tokens of each row, or None for missing or shorter rows.

    A server's teacher log-probs may include the prompt.

    >>> _ends([[-1.0, -2.0, -3.0], [-4.0]], [2, 0]), _ends([[-1.0]], [2])
    ([[-2.0, -3.0], []], None)
    """
    if rows is None or len(rows) != len(lengths) or any(len(row) < n for row, n in zip(rows, lengths, strict=True)):
        return None
    return [row[len(row) - n :] for row, n in zip(rows, lengths, strict=True)]


def megatron_place() -> Place:
    """Return the position of this process from Megatron, if installed."""
    if importlib.util.find_spec("megatron") is None:
        return Place(records=True, pieces=1)
    from megatron.core import mpu  # noqa: PLC0415

    first = mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_context_parallel_rank() == 0
    return Place(first and mpu.is_pipeline_last_stage(), int(mpu.get_context_parallel_world_size()))


_ADAPTER: Final = Adapter("slime")
rollout = _ADAPTER.rollout


def train(args: Any, rollout_id: int, rollout_data: Mapping[str, Any]) -> None:
    """Record one rank's part of a rollout, for ``--rollout-data-postprocess-path``."""
    _ADAPTER.train(args, rollout_id, rollout_data, megatron_place())


def tis(args: Any, **named: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return loss per token, masks and metrics, for ``--custom-tis-function-path``."""
    return _ADAPTER.tis(args, "slime.backends.megatron_utils.loss.vanilla_tis_function", named)
