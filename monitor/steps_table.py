"""The steps of a run as one wide table: a column per metric and per scalar of the trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.queries import Source

_BY_NAME: Final = ("metrics", "scalars")  # columns of the view `steps`; here a column for each name
_STEPS_AT_ONCE: Final = 1024  # names of a step take more memory than its values


def steps_table(source: Source, run: str) -> pa.Table:
    """Return all steps of `run` in order: the view ``steps``, its metrics and scalars as columns in alphabetical order.

    Every metric of the catalog has a column, and every scalar that the run has. A scalar whose name is taken becomes
    "step.<name>"; upper and lower case count as the same, as in DuckDB.
    """
    steps = queries.export_step_numbers(source, run=run)["step"].to_pylist()
    ranges = [(steps[at], steps[at : at + _STEPS_AT_ONCE][-1]) for at in range(0, len(steps), _STEPS_AT_ONCE)]
    parts = [queries.export_steps(source, run=run, first=first, last=last) for first, last in ranges or [(0, -1)]]
    fixed = pa.concat_tables([part.drop_columns(list(_BY_NAME)) for part in parts])
    metrics, scalars = (dict(_columns(parts, kind)) for kind in _BY_NAME)
    metrics = {key: pa.nulls(fixed.num_rows, pa.float64()) for key in KEYS} | metrics
    named = [*sorted(metrics.items()), *sorted(scalars.items())]
    names = _free_names(fixed.column_names, (name for name, _ in named))
    return pa.table([*fixed.columns, *(column for _, column in named)], names=[*fixed.column_names, *names])


def _columns(parts: list[pa.Table], kind: str) -> Iterator[tuple[str, pa.Array]]:
    """Names in the maps of column `kind`, each with its values by row; null where a row has none."""
    rows = sum(part.num_rows for part in parts)
    values: dict[str, NDArray[np.float64]] = {}
    unknown: dict[str, NDArray[np.bool_]] = {}
    for at, name, value in _entries(parts, kind):
        if name not in values:
            values[name], unknown[name] = np.zeros(rows), np.ones(rows, bool)
        values[name][at] = value.to_numpy(zero_copy_only=False)
        unknown[name][at] = value.is_null().to_numpy(zero_copy_only=False)
    for name, column in values.items():
        yield name, pa.array(column, mask=unknown[name])


def _entries(parts: list[pa.Table], kind: str) -> Iterator[tuple[NDArray[np.int64], str, pa.Array]]:
    """Rows that have a name, the name, and the values in these rows."""
    begin = 0
    for chunk in (chunk for part in parts for chunk in part[kind].chunks):
        ends = chunk.offsets.to_numpy()
        row = begin + np.repeat(np.arange(len(chunk)), np.diff(ends))
        begin += len(chunk)
        names = chunk.keys[ends[0] : ends[-1]].dictionary_encode()
        values = chunk.items[ends[0] : ends[-1]]
        order = np.argsort(names.indices, kind="stable")
        bounds = np.searchsorted(names.indices.to_numpy()[order], np.arange(len(names.dictionary) + 1))
        for place, name in enumerate(names.dictionary.to_pylist()):
            at = order[bounds[place] : bounds[place + 1]]
            yield row[at], name, values.take(pa.array(at))


def _free_names(fixed: Iterable[str], wanted: Iterable[str]) -> Iterator[str]:
    """Names that differ when their case is ignored, and without NUL, at which names end in other programs."""
    taken = set(fixed)
    for key in wanted:
        name = key.replace("\0", "␀")
        while name.casefold() in taken or not name:
            name = f"step.{name}"
        taken.add(name.casefold())
        yield name
