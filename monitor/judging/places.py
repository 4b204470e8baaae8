"""Group columns of sampled tokens: position, turn, rank, tag, prompt length and finish reason.

Dimensions: ``M`` stored rows, masked-out ones included, ``N`` tokens under the mask, ``S`` sequences.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.judging.frame import Column, Placed
from logprobe.monitor.judging.tokens import Tokens, layout

Codes = NDArray[np.intp]

_EXACT: Final = 32  # places from a start or an end that are told apart one by one
_TURNS: Final = 16  # turns that are told apart


def places_of(table: pa.Table, recorded: Tokens) -> tuple[Placed, ...]:
    """Return the usable tokens by group columns that belong together.

    Args:
        table: rows of ``diagnosis_tokens``.
        recorded: the same rows as returned by `tokens.from_table`.
    """
    sequence_M, mask_M, _ = layout(table)
    usable_N = np.isfinite(recorded.d) & ~recorded.broken
    sequence_N = recorded.sequence

    def each(column_S: Column) -> Column:
        return Column(column_S.codes[sequence_N], column_S.values)

    turn, turn_start = _turns(mask_M, sequence_M, recorded.place)
    groups: list[dict[str, Column]] = [
        {"from_start": Column.of(_blocks(recorded.place))},
        {"from_end": Column.of(_blocks(_from_end(recorded))), "finish": each(_strings(table["finish_reason"]))},
        {"turn": Column.of(np.minimum(turn, _TURNS)), "turn_start": Column.of(_blocks(turn_start))},
        {"rank": each(_strings(table["rank"]))},
        {name: each(column) for name, column in _tags(table["tags"]).items()},
        {"prompt_length": each(Column.of(_octaves(table["prompt_length"])))},
    ]
    lag = recorded.lag[usable_N]
    columns = ({name: c.where(usable_N) for name, c in table.items() if _differs(c)} for table in groups)
    return tuple(
        Placed(recorded.step[usable_N], lag, sequence_N[usable_N], recorded.d[usable_N], table)
        for table in columns
        if table
    )


def _differs(column: Column) -> bool:
    return len(column.values) > 1 or bool(len(column.values) and not column.known.all())


def _from_end(tokens: Tokens) -> Codes:
    """Return the number of following tokens under the mask [N]."""
    lengths = np.bincount(tokens.sequence) if len(tokens) else np.zeros(0, np.intp)
    after: Codes = lengths[tokens.sequence] - 1 - tokens.place
    return after


def _turns(mask_M: NDArray[np.bool_], sequence_M: Codes, place_N: Codes) -> tuple[Codes, Codes]:
    """Return the turn number of each token, a stretch under the mask, and its position within the turn [N]."""
    before = np.concatenate([[False], mask_M[:-1]]) & (np.diff(sequence_M, prepend=-1) == 0)
    begins_N = (mask_M & ~before)[mask_M]
    turn = np.cumsum(begins_N) - 1
    start = place_N[begins_N][turn] if len(turn) else turn
    first_N = np.diff(sequence_M[mask_M], prepend=-1) > 0
    base = turn[first_N][np.cumsum(first_N) - 1] if len(turn) else turn
    return turn - base, place_N - start


def _blocks(place_N: Codes) -> Codes:
    """Return positions as they are near 0, and further out the first position of their octave.

    >>> _blocks(np.array([0, 31, 32, 63, 64])).tolist()
    [0, 31, 32, 32, 64]
    """
    octave = 2 ** np.floor(np.log2(np.maximum(place_N, 1))).astype(np.intp)
    blocks: Codes = np.where(place_N < _EXACT, place_N, octave)
    return blocks


def _octaves(lengths: pa.ChunkedArray) -> NDArray[Any]:
    values = lengths.to_numpy().astype(np.float64)
    return np.where(values > 0, 2.0 ** np.floor(np.log2(np.maximum(values, 1))), values)


def _strings(values: pa.ChunkedArray) -> Column:
    return Column.of(np.array(values.to_pylist(), np.object_))


def _tags(values: pa.ChunkedArray) -> dict[str, Column]:
    """Return a column for each name of a tag."""
    rows = [dict(row or ()) for row in values.to_pylist()]
    names = dict.fromkeys(name for row in rows for name in row)
    return {f"tag {name}": Column.of(np.array([row.get(name) for row in rows], np.object_)) for name in names}
