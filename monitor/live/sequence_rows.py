"""Reduce raw records to stored rows by sequence: counts, sums, and the sufficient statistics of each pair.

Pure functions from Arrow tables to Arrow tables. A reduced training table has the columns of
`collectors.schema.STATISTICS`, as a collector sends them when it reduces its own calls.

`align` determines which tokens of a training record belong to the rollout record. It compares all trainer tokens if the
numbers agree, else those under the mask. If neither number agrees, the tokens under the mask are compared up to the
shorter length. Such lengths differ because engines cut stop strings, and trainers cut long answers or append an
end-of-sequence token. Tokens that the engine did not sample have no r and count as missing. If ids differ, the pair is
not aligned and not measured.

Routes of a mixture of experts are counted as (token, layer) pairs under the mask, and counts merge by addition. A pair
is compared where both sides have a route. A pair with a missing route or partner counts as expected but not compared,
which lowers the coverage. If the numbers of layers differ, no route is counted, because the layers cannot be matched.

Dimensions: ``_N`` flat tokens of the trainer's records, ``_M`` of the engine's, ``_S`` pairs of records, ``_P`` tokens
under the mask that have a partner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import ENGINE_PAIRS, PAIRS, SIDES
from logprobe.collectors.kernel.statistics import COLUMNS, DEFAULT_BOUNDS, ZERO_IS_PLACEHOLDER, sequence_statistics
from logprobe.collectors.recorder.arrays import offsets_of, segment_sums
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.routes import NO_ROUTE
from logprobe.collectors.spool.schema import ROLLOUT, STATISTICS, TRAINING_FLOATS
from logprobe.monitor import ragged

# What a reduced table takes over from the raw one as it is.
_CARRIED: Final = (
    "time",
    "step",
    "rank",
    "sample_id",
    "group_id",
    "reward",
    "weight_version",
    "tags",
    "part_ids",
    "rollout_versions",
)
_KEY: Final = ("run", "segment_id", "row")
_POLICIES = {"backend": "trainer_logprobs", "total": "current_logprobs"}
ROUTE_COLUMNS: Final = ("routes_match", "routes_expected", "routes_compared", "routes_equal")


def reduce_training(table: pa.Table) -> pa.Table:
    """Return one row per training record: `_KEY`, the columns of `STATISTICS`, ``rollout_source`` (received | missing).

    `table`: sound rows (see `soundness.py`) of raw training records after the columns of `_KEY`.
    """
    lengths_S = ragged.lengths(table["token_ids"])
    offsets_S1 = offsets_of(lengths_S)
    mask_N = ragged.flat_mask(table["mask"], lengths_S)
    expected_S = segment_sums(mask_N, offsets_S1).astype(np.int32)
    ids_N = ragged.flat_ids(table["token_ids"])
    columns: dict[str, object] = {name: table[name] for name in (*_KEY, *_CARRIED)}
    columns |= {
        "n_total": pa.array(lengths_S.astype(np.int32)),
        "n_expected": pa.array(expected_S),
        "token_hash": pa.array(token_hash(ids_N if mask_N.all() else ids_N[mask_N], offsets_of(expected_S))),
        "rollout_source": _source(table["rollout_logprobs"]),
        "route_layers": _route_layers(table["routes"], lengths_S),
        **measured(table, mask_N, offsets_S1),
    }
    return pa.table(columns)


def measured(table: pa.Table, mask_N: NDArray[np.bool_], offsets_S1: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return the inputs of metrics [S]: sums of token values reported by the trainer, and the statistics of each pair.

    `table`: raw training records, of which `TRAINING_FLOATS` are read. A value is null where a record has no such
    column.
    """
    floats = {name: ragged.flat_floats(table[name], np.diff(offsets_S1)) for name in TRAINING_FLOATS}
    pairs = {pair: _pair(table, pair, floats, mask_N, offsets_S1) for pair in SIDES}
    return {**_reported(table, floats, mask_N, offsets_S1), **pairs}


def reduce_rollout(table: pa.Table) -> pa.Table:
    """Return one row per rollout record: counts, sums and fingerprint in place of the lists of ids and log-probs."""
    lengths_S = ragged.lengths(table["token_ids"])
    offsets_S1 = offsets_of(lengths_S)
    logprobs_N = ragged.flat_floats(table["logprobs"], lengths_S)
    count_S, sum_S = np.zeros(len(lengths_S), np.int32), np.zeros(len(lengths_S))
    if logprobs_N is not None:
        sum_S, count_S = ragged.finite_sums(logprobs_N, None, offsets_S1)
    kept = [
        name
        for name in (*_KEY, *ROLLOUT.names)
        if name not in {"token_ids", "logprobs", "routes", "step_times", "prompt_token_ids"}
    ]
    return (
        table.select(kept)
        .append_column("n_tokens", pa.array(lengths_S.astype(np.int32)))
        .append_column("n_logprobs", pa.array(count_S))
        .append_column("logprob_sum", pa.array(sum_S, mask=count_S == 0))
        .append_column("token_hash", pa.array(token_hash(ragged.flat_ids(table["token_ids"]), offsets_S1)))
        .append_column("route_layers", _route_layers(table["routes"], lengths_S))
    )


def _route_layers(routes: pa.ChunkedArray, lengths_S: NDArray[np.int64]) -> pa.Array:
    """Return the number of layers with routes of each record [S], null for none."""
    found_S = ragged.lengths(routes)
    return pa.array((found_S // np.maximum(lengths_S, 1)).astype(np.int32), mask=found_S <= 0)


def pair_struct(
    pair: str,
    behaviour_N: NDArray[np.float32],
    policy_N: NDArray[np.float32],
    *,
    mask_N: NDArray[np.bool_],
    offsets_S1: NDArray[np.int64],
    advantages_N: NDArray[np.float32] | None,
    present_S: NDArray[np.bool_],
) -> pa.Array:
    """Return the sufficient statistics of one pair as structs of `STATISTICS` [S], null where not `present_S`."""
    columns = sequence_statistics(
        behaviour_N,
        policy_N,
        mask_N,
        offsets_S1,
        bounds=DEFAULT_BOUNDS[pair],
        advantages_N=advantages_N,
        zero_is_placeholder=pair in ZERO_IS_PLACEHOLDER,
    )
    return pa.StructArray.from_arrays(
        [pa.array(columns[name]) for name in COLUMNS],
        fields=list(STATISTICS.field(pair).type),
        mask=pa.array(~present_S),
    )


def _pair(
    table: pa.Table,
    pair: str,
    floats: dict[str, NDArray[np.float32] | None],
    mask_N: NDArray[np.bool_],
    offsets_S1: NDArray[np.int64],
) -> pa.Array:
    names = SIDES[pair]
    behaviour, policy = (floats[name] for name in names)
    if behaviour is None or policy is None:
        return pa.nulls(table.num_rows, STATISTICS.field(pair).type)
    present = np.logical_and.reduce([np.asarray(table[name].is_valid()) for name in names])
    return pair_struct(
        pair,
        behaviour,
        policy,
        mask_N=mask_N,
        offsets_S1=offsets_S1,
        advantages_N=floats["advantages"],
        present_S=present,
    )


def _source(received: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.where(np.asarray(received.is_valid()), "received", "missing"), pa.string())


def _reported(
    table: pa.Table,
    floats: dict[str, NDArray[np.float32] | None],
    mask_N: NDArray[np.bool_],
    offsets_S1: NDArray[np.int64],
) -> dict[str, pa.Array]:
    """Return the sums of token values that the trainer reported, null where it reported none."""
    rows = table.num_rows
    columns = {
        "advantage_abs_sum": pa.nulls(rows, pa.float64()),
        "entropy_sum": pa.nulls(rows, pa.float64()),
        "entropy_n": pa.nulls(rows, pa.int32()),
    }
    if floats["advantages"] is not None:
        absolute, _ = ragged.finite_sums(np.abs(floats["advantages"]), mask_N, offsets_S1)
        columns["advantage_abs_sum"] = pa.array(absolute, mask=np.asarray(table["advantages"].is_null()))
    if floats["entropy"] is not None:
        absent = np.asarray(table["entropy"].is_null())
        total, number = ragged.finite_sums(floats["entropy"], mask_N, offsets_S1)
        columns |= {"entropy_sum": pa.array(total, mask=absent), "entropy_n": pa.array(number, mask=absent)}
    return columns


@dataclass(frozen=True, slots=True)
class Aligned:
    """Agreement of pairs of records. `by_all_S`, `by_mask_S`: numbers agree; `match_S`: ids agree up to the shorter
    length."""

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
        """Return ``all``, ``masked`` or ``prefix`` (one side is longer), or null where ids differ [S]."""
        return pa.array(
            np.select([self.by_all_S, self.by_mask_S], ["all", "masked"], default="prefix"), mask=~self.match_S
        )


def align(table: pa.Table) -> Aligned:
    """Align pairs of records. `table`: the rows of ``sql/join_lists.sql``."""
    lengths_S = ragged.lengths(table["token_ids"])
    rollout_S = ragged.lengths(table["rollout_token_ids"])
    offsets_S1 = offsets_of(lengths_S)
    mask_N = ragged.flat_mask(table["mask"], lengths_S)
    expected_S = segment_sums(mask_N, offsets_S1).astype(np.int64)
    by_all_S = rollout_S == lengths_S
    by_mask_S = (rollout_S == expected_S) & ~by_all_S
    compared_S = np.where(by_all_S, lengths_S, np.minimum(expected_S, rollout_S).clip(0))
    candidate_N = mask_N | np.repeat(by_all_S, lengths_S)
    kept_N = candidate_N & (_rank(candidate_N, offsets_S1) < np.repeat(compared_S, lengths_S))
    kept_M = np.arange(rollout_S.sum()) < np.repeat(offsets_of(rollout_S)[:-1] + compared_S, rollout_S)
    differs = ragged.flat_ids(table["token_ids"])[kept_N] != ragged.flat_ids(table["rollout_token_ids"])[kept_M]
    same_S = segment_sums(differs, offsets_of(compared_S)) == 0
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
    """Return the number of chosen tokens before each token in its sequence [N]."""
    before_N1 = offsets_of(chosen_N)
    return before_N1[:-1] - np.repeat(before_N1[offsets_S1[:-1]], np.diff(offsets_S1))


def source_logprobs(table: pa.Table, aligned: Aligned) -> NDArray[np.float32]:
    """Return r at the source for each token of the trainer [N], NaN where the engine has none."""
    values_M = ragged.flat_floats(table["logprobs"], ragged.lengths(table["rollout_token_ids"]))
    placed_N = np.full(len(aligned.mask_N), np.nan, np.float32)
    if values_M is not None:
        placed_N[aligned.kept_N] = values_M[aligned.kept_M]
    return placed_N


def joined_statistics(table: pa.Table, aligned: Aligned, r_N: NDArray[np.float32]) -> dict[str, pa.Array]:
    """Return the statistics [S] of each pair with `r_N` as behaviour.

    They are null where ids differ or the policy's log-probs are absent.
    """
    advantages_N = ragged.flat_floats(table["advantages"], aligned.lengths_S)
    has_source_S = aligned.match_S & np.asarray(table["logprobs"].is_valid())
    result = {pair: pa.nulls(table.num_rows, STATISTICS.field(pair).type) for pair in PAIRS if pair not in ENGINE_PAIRS}
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
    """Return max |r as received − r at the source| under the mask [S], null where no token can be compared."""
    received_N = ragged.flat_floats(table["rollout_logprobs"], aligned.lengths_S)
    if received_N is None:
        return pa.nulls(table.num_rows, pa.float64())
    with np.errstate(invalid="ignore"):  # inf − inf is a broken token, and says so as NaN
        difference_N = np.abs(received_N.astype(np.float64) - r_N)
    usable_N = aligned.mask_N & np.isfinite(difference_N)
    number_S = segment_sums(usable_N, aligned.offsets_S1)
    largest_S = np.zeros(table.num_rows)
    filled = aligned.lengths_S > 0
    if filled.any():
        starts = aligned.offsets_S1[:-1][filled]
        largest_S[filled] = np.maximum.reduceat(np.where(usable_N, difference_N, 0), starts)
    return pa.array(largest_S, mask=number_S == 0)


def no_routes(rows: int) -> dict[str, pa.Array]:
    """Return null route columns for records that were not compared or have routes on at most one side."""
    return {name: pa.nulls(rows, pa.bool_() if name == "routes_match" else pa.int64()) for name in ROUTE_COLUMNS}


def route_counts(table: pa.Table, aligned: Aligned) -> dict[str, pa.Array]:
    """Return `ROUTE_COLUMNS` of pairs of records [S], null where a side has no routes or the token ids differ.

    `table`: the rows of ``sql/join_lists.sql``.
    """
    rollout_S = ragged.lengths(table["rollout_token_ids"])
    ours_S, theirs_S = _layers(table["routes"], aligned.lengths_S), _layers(table["rollout_routes"], rollout_S)
    both_S = aligned.match_S & (ours_S > 0) & (theirs_S > 0)
    same_S = both_S & (ours_S == theirs_S)
    compared_S, equal_S = np.zeros(len(same_S), np.int64), np.zeros(len(same_S), np.int64)
    for layers in np.unique(ours_S[same_S]).tolist():
        chosen_S = same_S & (ours_S == layers)
        compared_S[chosen_S], equal_S[chosen_S] = _of_one_depth(table, aligned, rollout_S, chosen_S, layers)
    expected_S = segment_sums(aligned.mask_N, aligned.offsets_S1).astype(np.int64) * ours_S
    counts = {"routes_expected": expected_S, "routes_compared": compared_S, "routes_equal": equal_S}
    return {
        "routes_match": pa.array(same_S, mask=~both_S),
        **{name: pa.array(count_S, mask=~same_S) for name, count_S in counts.items()},
    }


def _layers(routes: pa.ChunkedArray, lengths_S: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of layers of each record [S], 0 without routes."""
    return np.asarray(ragged.lengths(routes).clip(0) // np.maximum(lengths_S, 1))


def _of_one_depth(
    table: pa.Table, aligned: Aligned, rollout_S: NDArray[np.int64], chosen_S: NDArray[np.bool_], layers: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the compared and equal pairs of the chosen records, all of which have the same number of layers."""
    rows = table.select(["routes", "rollout_routes"]).filter(pa.array(chosen_S))
    ours_NL, theirs_ML = (
        np.asarray(ragged.one_array(column).flatten()).reshape(-1, layers) for column in rows.itercolumns()
    )
    of_chosen_N = np.repeat(chosen_S, aligned.lengths_S)
    kept_N, mask_N = aligned.kept_N[of_chosen_N], aligned.mask_N[of_chosen_N]
    kept_M = aligned.kept_M[np.repeat(chosen_S, rollout_S)]
    ours_PL, theirs_PL = ours_NL[kept_N & mask_N], theirs_ML[kept_M][mask_N[kept_N]]
    known_PL = (ours_PL != NO_ROUTE) & (theirs_PL != NO_ROUTE)
    equal_PL = known_PL & (ours_PL == theirs_PL)
    sequence_N = np.repeat(np.arange(rows.num_rows), aligned.lengths_S[chosen_S])
    sequence_P = sequence_N[kept_N & mask_N]
    compared, equal = (
        np.bincount(sequence_P, weights=pairs.sum(axis=1), minlength=rows.num_rows).astype(np.int64)
        for pairs in (known_PL, equal_PL)
    )
    return compared, equal
