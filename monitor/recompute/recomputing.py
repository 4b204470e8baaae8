"""`logprobe recompute`: the steps of a run, partition by partition, into the store.

A step some of whose raw tokens are gone keeps its statistics and is named. Partitions bound the memory, and are written
in the order of steps, so metrics appear while later steps are still computed.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader, connect
from logprobe.monitor.recompute import writing
from logprobe.monitor.recompute.partition import GoneError, Partition, compute
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

TOKENS_PER_PARTITION: Final = 2_000_000  # about 0.2 GB while they are worked on
SEQUENCES_PER_PARTITION: Final = 20_000
_MORE_ROUNDS: Final = 2  # files may be merged or moved between being looked up and being read


@dataclass(slots=True)
class Progress:
    """How far it is: steps whose statistics are written, of `of_steps`; sequences and raw tokens so far; what was kept,
    by step."""

    of_steps: int = 0
    of_tokens: int = 0
    steps: int = 0
    sequences: int = 0
    tokens: int = 0
    kept: dict[int, str] = field(default_factory=dict)


class Writer(ABC):
    """The store as its one writer offers it."""

    @abstractmethod
    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Rows of a stored statement."""

    @abstractmethod
    def write(self, table: pa.Table, steps: Sequence[int]) -> None:
        """See `writing.write`."""

    @abstractmethod
    def settle(self) -> None:
        """Returns when readers see the metrics."""


@contextmanager
def writer_of(home: Home) -> Iterator[Writer]:
    """The service of a home if one runs, else this process. Raises `HomeBusyError` or `StoreError` when the home cannot
    be had."""
    try:
        reader = connect(home)
    except ServiceUnavailableError:
        if home.owner() is not None:
            raise
        with home.lock(), Store.open(home) as store:
            yield _Alone(store)
        return
    with reader:
        yield _Served(home, reader)


class _Served(Writer):
    def __init__(self, home: Home, reader: FlightReader) -> None:
        self._home, self._reader = home, reader
        writing.sweep(home)

    def read(self, name: str, /, **params: Any) -> pa.Table:
        return self._reader.read(name, **params)

    def write(self, table: pa.Table, steps: Sequence[int]) -> None:
        path = writing.hand_over(self._home, uuid.uuid4().hex, table)
        try:
            self._reader.act(writing.WRITE, {"file": path.name, "steps": list(steps)})
        finally:
            path.unlink(missing_ok=True)

    def settle(self) -> None:
        """The service profiles the steps by itself."""


class _Alone(Writer):
    def __init__(self, store: Store) -> None:
        self._store = store
        self._pipeline = Pipeline(store, threading.Event())

    def read(self, name: str, /, **params: Any) -> pa.Table:
        return self._store.read(name, **params)

    def write(self, table: pa.Table, steps: Sequence[int]) -> None:
        writing.write(self._store, table, steps)

    def settle(self) -> None:
        self._pipeline.profile()


def recompute(
    home: Home,
    writer: Writer,
    run: str,
    *,
    steps: tuple[int | None, int | None],
    show: Callable[[Progress], None],
) -> Progress:
    """Recomputes what can be of these steps (first and last, None: no bound); `show` is called whenever it has got
    somewhere.

    Raises what the store raises.
    """
    due = queries.recompute_steps(writer, run=run, first=steps[0], last=steps[1])
    kept = due.filter(due["kept"].is_valid())
    progress = Progress(kept=dict(zip(kept["step"].to_pylist(), kept["kept"].to_pylist(), strict=True)))
    todo = due.filter(due["kept"].is_null())
    progress.of_steps, progress.of_tokens = todo.num_rows, int(pc.sum(todo["tokens"]).as_py() or 0)
    for batches in (_step_batches, *[_single_steps] * _MORE_ROUNDS):
        planned = _partitions(home, writer, run, batches(todo))
        done = _round(writer, planned, show=show, progress=progress)
        todo = todo.filter(pc.invert(pc.is_in(todo["step"], value_set=pa.array(sorted(done), pa.int64()))))
        if not todo.num_rows:
            break
    progress.kept |= dict.fromkeys(todo["step"].to_pylist(), "raw tokens are gone")
    writer.settle()
    return progress


def _round(
    writer: Writer, planned: Iterator[Partition], *, show: Callable[[Progress], None], progress: Progress
) -> set[int]:
    """Works on partitions; → steps that are done. Of the others some tokens were not where they had been a moment
    ago."""
    lost: set[int] = set()
    done: set[int] = set()
    for partition in planned:
        try:
            table, tokens = compute(partition)
        except GoneError:
            lost.update(partition.records["step"].to_pylist())
            continue
        steps = [step for step in partition.steps if step not in lost]
        writer.write(table, steps)
        done.update(steps)
        progress.steps += len(steps)
        progress.sequences += table.num_rows
        progress.tokens += tokens
        show(progress)
    return done


def _partitions(home: Home, writer: Writer, run: str, batches: Iterable[list[int]]) -> Iterator[Partition]:
    for steps in batches:
        sequences = queries.recompute_sequences(writer, run=run, steps=steps)
        sequences = sequences.filter(pc.invert(sequences["gone"]))
        records = _placed(home, sequences)
        step = records["step"].to_numpy()
        for first, last in _row_batches(records):
            ended = set(step[first:last].tolist()) - set(step[last : last + 1].tolist())
            yield Partition(records.slice(first, last - first), tuple(sorted(ended)))


def _placed(home: Home, records: pa.Table) -> pa.Table:
    """With addresses in place of names of files."""
    for kind in ("training", "rollout"):
        places = [None if path is None else str(home.path / path) for path in records[f"{kind}_file"].to_pylist()]
        index = records.schema.get_field_index(f"{kind}_file")
        records = records.set_column(index, f"{kind}_file", pa.array(places, pa.string()))
    return records


def _step_batches(todo: pa.Table) -> Iterator[list[int]]:
    """Consecutive steps of at most a partition's size together, or one step."""
    weight = _weight(todo["tokens"].to_numpy(), todo["sequences"].to_numpy())
    for first, last in _cut(weight):
        yield todo["step"].slice(first, last - first).to_pylist()


def _single_steps(todo: pa.Table) -> Iterator[list[int]]:
    """Each by itself: what cannot be read holds up no other."""
    return ([step] for step in todo["step"].to_pylist())


def _row_batches(records: pa.Table) -> Iterator[tuple[int, int]]:
    """Consecutive records of at most a partition's size, or one record."""
    tokens = records["n_total"].to_numpy().astype(np.int64)
    return _cut(_weight(tokens, np.ones(len(tokens))))


def _weight(tokens: Any, sequences: Any) -> Any:
    return np.maximum(tokens / TOKENS_PER_PARTITION, sequences / SEQUENCES_PER_PARTITION)


def _cut(weight: Any) -> Iterator[tuple[int, int]]:
    """Slices of consecutive items that weigh at most 1 together, or hold one.

    >>> list(_cut(np.array([0.5, 0.5, 0.6, 2.0, 0.1])))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    edges, total = [0], 0.0
    for number, item in enumerate(weight):
        if number and total + item > 1 and number > edges[-1]:
            edges.append(number)
            total = 0.0
        total += item
    for first, last in pairwise([*edges, len(weight)]):
        if last > first:
            yield first, last
