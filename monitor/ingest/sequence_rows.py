"""Raw records → what the store keeps of each sequence: counts, sums, and the sufficient statistics of every pair.

Pure functions from Arrow tables to Arrow tables. A reduced training table has the columns of `collectors.schema.STATISTICS`,
the same as a collector that reduced its calls itself would have sent.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import SIDES
from logprobe.collectors.kernel.statistics import COLUMNS, DEFAULT_BOUNDS, ZERO_IS_PLACEHOLDER, sequence_statistics
from logprobe.collectors.recorder.token_hash import token_hash
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


def reduce_training(table: pa.Table) -> pa.Table:
    """One row per training record: `_KEY`, the columns of `STATISTICS`, and ``rollout_source`` (received | missing).

    `table`: sound rows (see `soundness.py`) of raw training records with `_KEY` in front.
    """
    lengths_S = ragged.lengths(table["token_ids"])
    offsets_S1 = ragged.offsets_of(lengths_S)
    mask_N = ragged.flat_mask(table["mask"], lengths_S)
    expected_S = ragged.sums(mask_N, offsets_S1).astype(np.int32)
    ids_N = ragged.flat_ids(table["token_ids"])
    columns: dict[str, Any] = {name: table[name] for name in (*_KEY, *_CARRIED)}
    columns |= {
        "n_total": pa.array(lengths_S.astype(np.int32)),
        "n_expected": pa.array(expected_S),
        "token_hash": pa.array(token_hash(ids_N if mask_N.all() else ids_N[mask_N], ragged.offsets_of(expected_S))),
        "rollout_source": _source(table["rollout_logprobs"]),
        "route_layers": _route_layers(table["routes"], lengths_S),
        **measured(table, mask_N, offsets_S1),
    }
    return pa.table(columns)


def statistics_rows(table: pa.Table) -> pa.Table:
    """One row per training record and pair: ``run, step, segment_id, row, pair`` and the statistics, from columns of structs by pair."""
    parts = []
    for pair in SIDES:
        values = table[pair].combine_chunks()
        rows = table.select(["run", "step", "segment_id", "row"]).filter(values.is_valid())
        rows = rows.append_column("pair", pa.repeat(pair, rows.num_rows))
        values = values.drop_null()
        for field, column in zip(values.type, values.flatten(), strict=True):
            rows = rows.append_column(field, column)
        parts.append(rows)
    return pa.concat_tables(parts)


def measured(table: pa.Table, mask_N: NDArray[np.bool_], offsets_S1: NDArray[np.int64]) -> dict[str, pa.Array]:
    """[S] what metrics are computed from: sums of what the trainer reported token by token, and the statistics of every pair.

    `table`: raw training records, of which `TRAINING_FLOATS` are read; null where a record has no such values.
    """
    floats = {name: ragged.flat_floats(table[name], np.diff(offsets_S1)) for name in TRAINING_FLOATS}
    pairs = {pair: _pair(table, pair, floats, mask_N, offsets_S1) for pair in SIDES}
    return {**_reported(table, floats, mask_N, offsets_S1), **pairs}


def reduce_rollout(table: pa.Table) -> pa.Table:
    """One row per rollout record: everything but the lists of ids and log-probs, and their counts, sums and fingerprint."""
    lengths_S = ragged.lengths(table["token_ids"])
    offsets_S1 = ragged.offsets_of(lengths_S)
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
    """[S] layers whose routes a record has; null where it has none."""
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
    """[S] sufficient statistics of one pair as the structs of `STATISTICS`; null where not `present_S`."""
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
    """Sums of what the trainer reported token by token; null where it reported nothing."""
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
