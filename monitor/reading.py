"""Content of a data directory as polars frames, for notebooks and scripts.

    from logprobe.monitor import reading

    reading.steps("my-run", home="/shared/logprobe").select("step", "backend.k3_kl")
    reading.tokens("my-run").filter(pl.col("step") == 120, pl.col("mask")).collect()

Every call reads through the running service, or else directly from the file (see `logprobe.monitor.reader`). The call
closes its connection before it returns. The columns are those of the SQL views of the same name. Unknown is null, and
NaN is a recorded value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor.analysis.steps_table import steps_table
from logprobe.monitor.reader import Reader, open_reader

Where = str | os.PathLike[str] | None

_SEQUENCES_AT_ONCE: Final = 100_000
_TOKENS_AT_ONCE: Final = 1_000_000
# Steps that were not computed yet have sequences only, frozen ones a summary only.
_COUNTED: Final = """
    SELECT step, max({n}) AS n FROM (
        SELECT step, count(*) AS sequences, sum(n_total) AS tokens FROM training_sequences WHERE run = $run GROUP BY step
        UNION ALL SELECT step, sequences, tokens FROM step_summaries WHERE run = $run
    ) GROUP BY step ORDER BY step
"""


def runs(*, home: Where = None) -> pl.DataFrame:
    """Return one row per run of the view ``runs``, newest first.

    Args:
        home: data directory, by default ``LOGPROBE_HOME``.

    Raises `StoreError` for an empty data directory, and `ServiceUnavailableError` if its service does not answer.
    """
    with _open(home) as reader:
        return _frame(reader.query("SELECT * FROM runs ORDER BY last_time DESC NULLS LAST, run"))


def steps(run: str, *, home: Where = None) -> pl.DataFrame:
    """Return one row per optimizer step of the view ``steps``, in order, with a column per metric and per scalar.

    A scalar with an occupied name has the column "step.<name>". A NUL in a name is shown as "␀".

    Raises `StoreError` for an unknown run, and the errors of `runs`.
    """
    with _open(home) as reader:
        _check(reader, run)
        return _frame(steps_table(reader, run))


def sequences(run: str, *, home: Where = None) -> pl.DataFrame:
    """Return one row per trained sequence of the view ``sequences``, in order of steps. Frozen steps have none. Raises
    as `steps` does."""
    with _open(home) as reader:
        _check(reader, run)
        parts = _parts(reader, "sequences", run, "*", _chunks(_counted(reader, "sequences", run), _SEQUENCES_AT_ONCE))
        return pl.concat([_empty(reader, "sequences"), *parts])


def tokens(run: str, *, home: Where = None) -> pl.LazyFrame:
    """Return one row per raw token of the view ``tokens``, in order of steps, as a lazy frame.

    A query loads only the columns that it needs and the steps that match its conditions on ``step`` alone. `collect`
    reads about a million tokens at a time, so ``collect(engine="streaming")`` and ``sink_parquet`` need little memory.

    Raises `StoreError` for an unknown run. The errors of `runs` are raised immediately or on `collect`.
    """
    with _open(home) as reader:
        _check(reader, run)
        schema = _empty(reader, "tokens").schema

    def source(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,  # noqa: ARG001
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        names = list(schema) if columns is None else columns
        read = _with(names, predicate)
        with _open(home) as reader:
            chunks = _chunks(_counted(reader, "tokens", run), _TOKENS_AT_ONCE, predicate)
            for part in _parts(reader, "tokens", run, _quoted(read), chunks):
                rows = (part if predicate is None else part.filter(predicate)).select(names)
                if left is not None:
                    rows = rows.head(left)
                    left -= rows.height
                yield rows
                if left == 0:
                    return

    return register_io_source(source, schema=schema)


def _open(home: Where) -> Reader:
    named = os.environ.get("LOGPROBE_HOME") if home is None else home
    if not named:
        raise ConfigurationError("no home named: pass home=, or set LOGPROBE_HOME to a folder")
    return open_reader(named)


def _check(reader: Reader, run: str) -> None:
    names = reader.query("SELECT run FROM runs ORDER BY run")["run"].to_pylist()
    if run not in names:
        raise StoreError(f"no run {run!r} in this home; choose one of: {', '.join(names) or 'none'}")


def _parts(reader: Reader, view: str, run: str, columns: str, chunks: list[tuple[int, int]]) -> Iterator[pl.DataFrame]:
    # The names of columns are the view's own.
    sql = f"SELECT {columns} FROM {view} WHERE run = $run AND step BETWEEN $first AND $last ORDER BY step"  # noqa: S608
    for first, last in chunks:
        yield _frame(reader.query(sql, {"run": run, "first": first, "last": last}))


def _empty(reader: Reader, view: str) -> pl.DataFrame:
    return _frame(reader.query(f"SELECT * FROM {view} LIMIT 0"))  # noqa: S608 - our own names


def _counted(reader: Reader, view: str, run: str) -> pl.DataFrame:
    """Return the steps of `run` in order, each with the approximate number of rows (`n`) of `view`."""
    return _frame(reader.query(_COUNTED.format(n=view), {"run": run}))


def _chunks(counted: pl.DataFrame, at_once: int, predicate: pl.Expr | None = None) -> list[tuple[int, int]]:
    """Return ranges of steps, first and last, of at most `at_once` rows or one step, without steps that `predicate`
    excludes."""
    for condition in [] if predicate is None else _conjuncts(predicate):
        if set(condition.meta.root_names()) == {"step"}:
            counted = counted.with_columns(pl.when(condition).then(pl.col("n")))
    chunks: list[tuple[int, int]] = []
    rows = at_once
    for step, n in counted.iter_rows():
        if n is None:
            rows = at_once  # the next chunk begins behind it
        elif rows + n > at_once:
            chunks.append((step, step))
            rows = n
        else:
            chunks[-1] = (chunks[-1][0], step)
            rows += n
    return chunks


def _conjuncts(predicate: pl.Expr) -> list[pl.Expr]:
    """Return the conditions whose conjunction is the predicate."""
    inputs = predicate.meta.pop()
    if len(inputs) == 2:  # noqa: PLR2004
        for left, right in (inputs, inputs[::-1]):
            if predicate.meta.eq(left & right):
                return [*_conjuncts(left), *_conjuncts(right)]
    return [predicate]


def _with(columns: list[str], predicate: pl.Expr | None) -> list[str]:
    """Return `columns` with the columns that `predicate` reads."""
    return list(dict.fromkeys([*columns, *([] if predicate is None else predicate.meta.root_names())]))


def _quoted(columns: list[str]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in columns) or "1"


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - a table never becomes a series
    return frame
