"""Which tokens of a training record are the rollout record's, and what follows from it. Pure.

Of each pair of records: all tokens of the trainer's (masked ones included) against the engine's when the numbers agree, else the
trainer's under the mask. If neither agrees in number, the trainer's tokens under the mask are compared as far as both sides go:
a stop string is cut off in front of the engine, and trainers cut long answers and append an end-of-sequence token of their own.
What the engine did not sample has no r and is missing. Where ids differ, the pair is not aligned and nothing is measured on it.

Dimensions: ``_N`` flat tokens of the trainer's records, ``_M`` of the engine's, ``_S`` pairs of records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.spool.schema import STATISTICS
from logprobe.monitor import ragged
from logprobe.monitor.ingest.sequence_rows import pair_struct

_POLICIES = {"backend": "trainer_logprobs", "total": "current_logprobs"}


@dataclass(frozen=True, slots=True)
class Aligned:
    """How pairs of records fit together. `by_all_S`, `by_mask_S`: numbers agree; `match_S`: ids agree as far as both go."""

    lengths_S: NDArray[np.int64]
    offsets_S1: NDArray[np.int64]
    mask_N: NDArray[np.bool_]
    by_all_S: NDArray[np.bool_]
    by_mask_S: NDArray[np.bool_]
    match_S: NDArray[np.bool_]
    kept_N: NDArray[np.bool_]  # the trainer's tokens that have a partner, in records that match
    kept_M: NDArray[np.bool_]  # the engine's, one for one in the same order

    @property
    def fits_S(self) -> NDArray[np.bool_]:
        """Pairs whose numbers of tokens agree."""
        return self.by_all_S | self.by_mask_S

    def names(self) -> pa.Array:
        """[S] ``all``, ``masked``, ``prefix`` (one side goes on longer), or null where ids differ."""
        return pa.array(
            np.select([self.by_all_S, self.by_mask_S], ["all", "masked"], default="prefix"), mask=~self.match_S
        )


def align(table: pa.Table) -> Aligned:
    """Aligns pairs of records; `table`: the rows of ``sql/join_lists.sql``."""
    lengths_S = ragged.lengths(table["token_ids"])
    rollout_S = ragged.lengths(table["rollout_token_ids"])
    offsets_S1 = ragged.offsets_of(lengths_S)
    mask_N = ragged.flat_mask(table["mask"], lengths_S)
    expected_S = ragged.sums(mask_N, offsets_S1).astype(np.int64)
    by_all_S = rollout_S == lengths_S
    by_mask_S = (rollout_S == expected_S) & ~by_all_S
    compared_S = np.where(by_all_S, lengths_S, np.minimum(expected_S, rollout_S).clip(0))
    candidate_N = mask_N | np.repeat(by_all_S, lengths_S)
    kept_N = candidate_N & (_rank(candidate_N, offsets_S1) < np.repeat(compared_S, lengths_S))
    kept_M = np.arange(rollout_S.sum()) < np.repeat(ragged.offsets_of(rollout_S)[:-1] + compared_S, rollout_S)
    differs = ragged.flat_ids(table["token_ids"])[kept_N] != ragged.flat_ids(table["rollout_token_ids"])[kept_M]
    same_S = ragged.sums(differs, ragged.offsets_of(compared_S)) == 0
    match_S = same_S & (by_all_S | by_mask_S | (compared_S > 0))
    return Aligned(
        lengths_S,
        offsets_S1,
        mask_N,
        by_all_S,
        by_mask_S,
        match_S,
        kept_N & np.repeat(match_S, lengths_S),
        kept_M & np.repeat(match_S, rollout_S),
    )


def _rank(chosen_N: NDArray[np.bool_], offsets_S1: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N] for a chosen token: how many chosen ones stand before it in its sequence."""
    before_N1 = ragged.offsets_of(chosen_N)
    return before_N1[:-1] - np.repeat(before_N1[offsets_S1[:-1]], np.diff(offsets_S1))


def source_logprobs(table: pa.Table, aligned: Aligned) -> NDArray[np.float32]:
    """[N] r at the source in the trainer's places; NaN where the engine has none."""
    values_M = ragged.flat_floats(table["logprobs"], ragged.lengths(table["rollout_token_ids"]))
    placed_N = np.full(len(aligned.mask_N), np.nan, np.float32)
    if values_M is not None:
        placed_N[aligned.kept_N] = values_M[aligned.kept_M]
    return placed_N


def joined_statistics(table: pa.Table, aligned: Aligned, r_N: NDArray[np.float32]) -> dict[str, pa.Array]:
    """Pair → statistics [S] with `r_N` as behaviour; null where records do not match or the policy's log-probs are absent."""
    advantages_N = ragged.flat_floats(table["advantages"], aligned.lengths_S)
    has_source_S = aligned.match_S & np.asarray(table["logprobs"].is_valid())
    result = {
        pair: pa.nulls(table.num_rows, STATISTICS.field(pair).type) for pair in ("update", "reference")
    }  # need no r
    for pair, name in _POLICIES.items():
        policy_N = ragged.flat_floats(table[name], aligned.lengths_S)
        present_S = has_source_S & np.asarray(table[name].is_valid())
        result[pair] = (
            pa.nulls(table.num_rows, STATISTICS.field(pair).type)
            if policy_N is None
            else pair_struct(
                pair,
                r_N,
                policy_N,
                mask_N=aligned.mask_N,
                offsets_S1=aligned.offsets_S1,
                advantages_N=advantages_N,
                present_S=present_S,
            )
        )
    return result


def received_differences(table: pa.Table, aligned: Aligned, r_N: NDArray[np.float32]) -> pa.Array:
    """[S] max |r as received − r at the source| under the mask; null where there is nothing to compare."""
    received_N = ragged.flat_floats(table["rollout_logprobs"], aligned.lengths_S)
    if received_N is None:
        return pa.nulls(table.num_rows, pa.float64())
    with np.errstate(invalid="ignore"):  # inf − inf is a broken token, and says so as NaN
        difference_N = np.abs(received_N.astype(np.float64) - r_N)
    usable_N = aligned.mask_N & np.isfinite(difference_N)
    number_S = ragged.sums(usable_N, aligned.offsets_S1)
    largest_S = np.zeros(table.num_rows)
    filled = aligned.lengths_S > 0
    if filled.any():
        starts = aligned.offsets_S1[:-1][filled]
        largest_S[filled] = np.maximum.reduceat(np.where(usable_N, difference_N, 0), starts)
    return pa.array(largest_S, mask=number_S == 0)
