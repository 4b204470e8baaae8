"""How many routes of a mixture of experts engine and trainer have in common, per sequence. Pure.

Counts of (token, layer) pairs under the mask, so they merge by adding. A pair is compared where both sides have a route; one whose
route is missing on a side, or whose token has no partner, was expected and not compared: it lowers the coverage. Where the sides
have different numbers of layers nothing is counted at all: which layer is which is not known.

Dimensions: ``_N`` flat tokens of the trainer's records, ``_M`` of the engine's, ``_S`` pairs of records, ``_P`` tokens under the mask that
have a partner.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.recorder.arrays import segment_sums
from logprobe.collectors.routes import NO_ROUTE
from logprobe.monitor import ragged
from logprobe.monitor.ingest.sequence_rows import Aligned

ROUTE_COLUMNS: Final = ("routes_match", "routes_expected", "routes_compared", "routes_equal")


def no_routes(rows: int) -> dict[str, pa.Array]:
    """The columns of records of which a side has no routes, or that were not compared: null."""
    return {name: pa.nulls(rows, pa.bool_() if name == "routes_match" else pa.int64()) for name in ROUTE_COLUMNS}


def route_counts(table: pa.Table, aligned: Aligned) -> dict[str, pa.Array]:
    """`ROUTE_COLUMNS` [S] of pairs of records; null where a side has no routes or the token ids differ.

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
    """[S] layers of each record; 0: it has no routes."""
    return np.asarray(ragged.lengths(routes).clip(0) // np.maximum(lengths_S, 1))


def _of_one_depth(
    table: pa.Table, aligned: Aligned, rollout_S: NDArray[np.int64], chosen_S: NDArray[np.bool_], layers: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compared and equal pairs of the chosen records, which all have so many layers."""
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
