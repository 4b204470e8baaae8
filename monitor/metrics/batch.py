"""Metrics of the catalog for arrays in memory, with the code of the jobs, for notebooks, tests and checks in a trainer.

Dimensions: ``_BT`` padded batch × time, ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.kernel.pairs import SIDES
from logprobe.collectors.kernel.statistics import (
    DEFAULT_BOUNDS,
    ZERO_IS_PLACEHOLDER,
    Bounds,
    Statistics,
    sequence_statistics,
)
from logprobe.collectors.recorder import arrays
from logprobe.monitor.metrics.layouts import Ragged, flattened, mask_of, per_token
from logprobe.monitor.metrics.parts import one_group, step_values, uncompared
from logprobe.monitor.metrics.sums import Floats, StepSums


@dataclass(frozen=True)
class _Batch:
    """Flattened batch. The lengths of `mask` and values per token agree with `lengths`. Those of log-probs may
    differ.
    """

    lengths: NDArray[np.int64]
    mask: Ragged
    sides: Mapping[str, Ragged]  # "rollout", "trainer", "current", "reference", "teacher" where given
    advantages: Ragged | None
    entropy: Ragged | None
    rewards: Floats | None

    def pair(self, pair: str, bounds: Bounds) -> Statistics | None:
        """Return statistics [S], empty for sides of different length, or None if a side is missing throughout."""
        behaviour, policy = _SIDES[pair]
        if behaviour not in self.sides or policy not in self.sides:
            return None
        first, second = self.sides[behaviour], self.sides[policy]
        keep = (first.lengths == self.lengths) & (second.lengths == self.lengths)
        compared = sequence_statistics(
            first.of(keep),
            second.of(keep),
            self.mask.of(keep),
            arrays.offsets_of(self.lengths[keep]),
            bounds=bounds,
            advantages_N=None if self.advantages is None else self.advantages.of(keep),
            zero_is_placeholder=pair in ZERO_IS_PLACEHOLDER,
        )
        if keep.all():
            return compared
        result = uncompared(self.expected())
        for name, column in compared.items():
            result[name][keep] = column
        return result

    def expected(self) -> NDArray[np.int64]:
        """Return the number of tokens under the mask of each sequence [S]."""
        sequence = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(sequence[self.mask.values.astype(np.bool_)], minlength=len(self.lengths)).astype(np.int64)

    def per_sequence(self, values_N: NDArray[np.generic] | None) -> Floats:
        """Return the sum over each sequence's finite tokens under the mask [S], NaN without one."""
        if values_N is None:
            return np.full(len(self.lengths), np.nan)
        use = self.mask.values.astype(np.bool_) & np.isfinite(values_N)
        sequence = np.repeat(np.arange(len(self.lengths)), self.lengths)[use]
        count = np.bincount(sequence, minlength=len(self.lengths))
        return np.where(count > 0, np.bincount(sequence, values_N[use], minlength=len(self.lengths)), np.nan)


_SIDES: Final = {pair: tuple(name.removesuffix("_logprobs") for name in sides) for pair, sides in SIDES.items()}


def compute(
    rollout_logprobs: Any,
    trainer_logprobs: Any,
    mask: Any = None,
    *,
    current_logprobs: Any = None,
    reference_logprobs: Any = None,
    teacher_logprobs: Any = None,
    advantages: Any = None,
    entropy: Any = None,
    rewards: Any = None,
    cu_seqlens: Any = None,
    bounds: Mapping[str, Bounds] = DEFAULT_BOUNDS,
) -> dict[str, float | None]:
    """Return every metric of the catalog for one batch.

    Args:
        rollout_logprobs: r of the engine, padded [batch, time], packed [tokens] with `cu_seqlens`, or a list of 1-D
            arrays. Numpy arrays, torch tensors and lists of any float type are accepted. None, or None for a sequence
            of a list, means missing.
        trainer_logprobs: t, recomputed by the trainer before the update, in the same layout.
        mask: non-zero for tokens that the policy sampled and trains on, or None for all tokens.
        current_logprobs: c, under the current policy. Without it, the pairs `update` and `total` are null.
        reference_logprobs: log-probs under the reference policy. Without them, the pair `reference` is null.
        teacher_logprobs: log-probs under a teacher. Without them, the pair `teacher` is null.
        advantages: advantages per token, or one per sequence.
        entropy: entropy per token.
        rewards: one reward per sequence.
        cu_seqlens: start of each packed sequence and the end of the last.
        bounds: bounds of ρ by pair, for the clip fractions. Other pairs have the default bounds.

    Returns:
        ``<pair>.<key>`` or ``<key>`` → value, None if not measurable from these inputs. Sequences of a list whose two
        sides differ in length are omitted. They lower `coverage` and count in `length_mismatch_frac`.

    Raises:
        InputError: the arrays do not fit together.
    """
    batch = _flatten(
        (rollout_logprobs, trainer_logprobs, current_logprobs, reference_logprobs, teacher_logprobs),
        mask=mask,
        advantages=advantages,
        entropy=entropy,
        rewards=rewards,
        cu_seqlens=cu_seqlens,
    )
    return step_values(_step_sums(batch), _pairs(batch, bounds))


def statistics(
    rollout_logprobs: Any,
    trainer_logprobs: Any,
    mask: Any = None,
    *,
    current_logprobs: Any = None,
    reference_logprobs: Any = None,
    teacher_logprobs: Any = None,
    advantages: Any = None,
    cu_seqlens: Any = None,
    bounds: Mapping[str, Bounds] = DEFAULT_BOUNDS,
) -> dict[str, Statistics]:
    """Return sufficient statistics per sequence, by pair, for `merge` and `from_statistics`. The arguments are those of
    `compute`.

    Returns:
        Pair → `logprobe.collectors.kernel.statistics.COLUMNS` → array [sequences], for pairs that have both sides. A
        sequence whose two sides differ in length has its number of tokens under the mask, `n_expected`, and NaN as
        `min_d`.

    Raises:
        InputError: the arrays do not fit together.
    """
    batch = _flatten(
        (rollout_logprobs, trainer_logprobs, current_logprobs, reference_logprobs, teacher_logprobs),
        mask=mask,
        advantages=advantages,
        cu_seqlens=cu_seqlens,
    )
    return _pairs(batch, bounds)


def _pairs(batch: _Batch, bounds: Mapping[str, Bounds]) -> dict[str, Statistics]:
    unknown = bounds.keys() - _SIDES.keys()
    if unknown:
        raise InputError(f"bounds: there is no pair {min(unknown)!r}; choose one of: {', '.join(_SIDES)}")
    limits = {**DEFAULT_BOUNDS, **bounds}
    computed = {pair: batch.pair(pair, limits[pair]) for pair in _SIDES}
    return {pair: columns for pair, columns in computed.items() if columns is not None}


def _step_sums(batch: _Batch) -> StepSums:
    size = len(batch.lengths)
    entropy = None if batch.entropy is None else batch.entropy.values
    advantages = None if batch.advantages is None else np.abs(batch.advantages.values.astype(np.float64))
    return StepSums(
        groups=one_group(size),
        n_expected=batch.expected().astype(np.float64),
        reward=np.full(size, np.nan) if batch.rewards is None else batch.rewards,
        advantage_abs_sum=batch.per_sequence(advantages),
        entropy_sum=batch.per_sequence(entropy),
        entropy_n=batch.per_sequence(None if entropy is None else np.isfinite(entropy).astype(np.float64)),
        token_match=np.full(size, np.nan),
        length_match=_length_match(batch, size),
    )


def _length_match(batch: _Batch, size: int) -> Floats:
    if not {"rollout", "trainer"} <= batch.sides.keys():
        return np.full(size, np.nan)
    rollout, trainer = batch.sides["rollout"].lengths, batch.sides["trainer"].lengths
    return np.where(np.minimum(rollout, trainer) < 0, np.nan, rollout == trainer)


def _flatten(
    sides: tuple[Any, ...],
    *,
    mask: Any,
    advantages: Any = None,
    entropy: Any = None,
    rewards: Any = None,
    cu_seqlens: Any = None,
) -> _Batch:
    named = zip(("rollout", "trainer", "current", "reference", "teacher"), sides, strict=True)
    given = {name: flattened(f"{name}_logprobs", value, cu_seqlens) for name, value in named if value is not None}
    if not given:
        raise InputError("no log-probs given; pass rollout_logprobs, trainer_logprobs or current_logprobs")
    lengths = _reference_lengths(given)
    aligned = {name: value for name, value in given.items() if (value.lengths >= 0).any() or not len(lengths)}
    return _Batch(
        lengths,
        mask_of(mask, lengths, cu_seqlens),
        aligned,
        None if advantages is None else per_token("advantages", advantages, lengths, cu_seqlens),
        None if entropy is None else per_token("entropy", entropy, lengths, cu_seqlens),
        None if rewards is None else np.asarray(arrays.host_list("rewards", rewards, len(lengths)), np.float64),
    )


def _reference_lengths(given: Mapping[str, Ragged]) -> NDArray[np.int64]:
    """Return the trainer's lengths of the sequences, or the engine's if the trainer's log-probs are missing."""
    sizes = {len(value.lengths) for value in given.values()}
    if len(sizes) > 1:
        raise InputError(f"log-probs have {sorted(sizes)} sequences; pass the same number on all sides")
    lengths = np.full(sizes.pop(), -1, np.int64)
    for name in ("trainer", "current", "reference", "teacher", "rollout"):
        if name in given:
            lengths = np.where(lengths < 0, given[name].lengths, lengths)
    return np.maximum(lengths, 0)
