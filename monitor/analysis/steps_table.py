"""Steps of a run as one wide table, with a column per metric and per scalar of the trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.queries import Source

_STEPS_AT_ONCE: Final = 1024  # names of a step take more memory than its values


def steps_table(source: Source, run: str) -> pa.Table:
    """Return all steps of `run` in order, with the columns of the view ``steps``, then metrics and scalars by name.

    Every metric of the catalog and every scalar of the run has a column. A scalar with an occupied name becomes
    "step.<name>". Names are case-insensitive, as in DuckDB.
    """
    fixed = queries.export_steps(source, run=run)
    steps = fixed["step"].to_numpy()
    starts = range(0, len(steps), _STEPS_AT_ONCE)
    ranges = [(int(steps[at]), int(steps[at : at + _STEPS_AT_ONCE][-1])) for at in starts]
    metrics, scalars = (
        _columns(steps, (query(source, run=run, first=first, last=last) for first, last in ranges))
        for query in (queries.export_step_metrics, queries.export_step_scalars)
    )
    metrics = {key: pa.nulls(len(steps), pa.float64()) for key in KEYS} | metrics
    named = [*sorted(metrics.items()), *sorted(scalars.items())]
    names = _free_names(fixed.column_names, (name for name, _ in named))
    return pa.table([*fixed.columns, *(column for _, column in named)], names=[*fixed.column_names, *names])


def _columns(steps: NDArray[np.int64], parts: Iterable[pa.Table]) -> dict[str, pa.Array]:
    """Return the names in tables (step, name, value) with their values by row of ascending `steps`, null if missing."""
    values: dict[str, NDArray[np.float64]] = {}
    unknown: dict[str, NDArray[np.bool_]] = {}
    for at, name, value in (entry for part in parts for entry in _entries(steps, part)):
        if name not in values:
            values[name], unknown[name] = np.zeros(len(steps)), np.ones(len(steps), bool)
        values[name][at] = value.to_numpy(zero_copy_only=False)
        unknown[name][at] = value.is_null().to_numpy(zero_copy_only=False)
    return {name: pa.array(column, mask=unknown[name]) for name, column in values.items()}


def _entries(steps: NDArray[np.int64], part: pa.Table) -> Iterator[tuple[NDArray[np.int64], str, pa.Array]]:
    """Yield each name with its row numbers and values."""
    row = np.searchsorted(steps, part["step"].to_numpy())
    names = part["name"].combine_chunks().dictionary_encode()
    values = part["value"].combine_chunks()
    order = np.argsort(names.indices, kind="stable")
    bounds = np.searchsorted(names.indices.to_numpy()[order], np.arange(len(names.dictionary) + 1))
    for place, name in enumerate(names.dictionary.to_pylist()):
        at = order[bounds[place] : bounds[place + 1]]
        yield row[at], name, values.take(pa.array(at))


def _free_names(fixed: Iterable[str], wanted: Iterable[str]) -> Iterator[str]:
    """Yield names that are unique regardless of case and contain no NUL, which ends names in other programs."""
    taken = set(fixed)
    for key in wanted:
        name = key.replace("\0", "␀")
        while name.casefold() in taken or not name:
            name = f"step.{name}"
        taken.add(name.casefold())
        yield name
