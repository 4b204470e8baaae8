"""Samples of raw tokens, kept from one diagnosis of a live run to the next: only what is new is read.

Raw records never change, but what is known of them does: a rollout record comes late, a step is trained again, marks
correct versions, raw tokens are moved or removed. So a kept step counts only while its sequences, what they were joined
with and where these lie are what it was read from (``diagnosis_sample``); nobody has to say what is out of date.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.monitor import queries
from logprobe.monitor.queries import Source

_MOST: Final = 64 << 20  # bytes of all runs; a full sample has 14 MB
_IDLE: Final = 600.0  # seconds after which a run that nobody diagnoses gives its room to others
_PIECES: Final = 32  # of a table, which are then made one


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What was read: tokens, and what each step's are made of. `table` None: there was no room for so many bytes."""

    table: pa.Table | None
    nbytes: int
    parts: int
    fingerprints: Mapping[int, int]
    used: float


class Samples:
    """Samples of the runs of one store. Safe to share between threads, of which each has runs of its own."""

    def __init__(self, most: int = _MOST, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: bytes to keep; the sample of a run that does not fit in is read again each time. `clock`: seconds."""
        self._most = most
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._turn = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What is kept now."""
        return sum(kept.nbytes for kept in self._kept.copy().values() if kept.table is not None)

    def read(self, source: Source, run: str, steps: Sequence[int], parts: int) -> pa.Table:
        """Return the rows of ``diagnosis_tokens``, in the same order; a sequence's number is one of its step's.

        Raises `QueryError`.
        """
        known = self._known(run)
        if known is None:
            return queries.diagnosis_tokens(source, run=run, steps=steps, parts=parts)
        made = queries.diagnosis_sample(source, run=run, steps=steps, parts=parts)
        fingerprints = dict(zip(made["step"].to_pylist(), made["fingerprint"].to_pylist(), strict=True))
        pieces, others = _unchanged(known if known.parts == parts else _NONE, fingerprints)
        if others or not pieces:
            pieces.append(queries.diagnosis_tokens(source, run=run, steps=others or steps, parts=parts))
        table = _by_step(pieces)
        self._keep(run, _Kept(table, table.nbytes, parts, fingerprints, self._clock()))
        return table

    def _known(self, run: str) -> _Kept | None:
        """Return what is kept of a run; None: there is no room for it."""
        now = self._clock()
        with self._turn:
            self._kept = {name: kept for name, kept in self._kept.items() if kept.used > now - _IDLE}
            known = self._kept.get(run, _NONE)
            if known.table is None and self.nbytes + known.nbytes > self._most:
                return None
            return known

    def _keep(self, run: str, kept: _Kept) -> None:
        with self._turn:
            self._kept.pop(run, None)
            if self.nbytes + kept.nbytes > self._most:
                kept = _Kept(None, kept.nbytes, 0, {}, kept.used)
            self._kept[run] = kept


_NONE: Final = _Kept(None, 0, 0, {}, -math.inf)


def _unchanged(known: _Kept, fingerprints: Mapping[int, int]) -> tuple[list[pa.Table], list[int]]:
    """Kept tokens of the steps that are as they were, and which steps are not."""
    same = [step for step, fingerprint in fingerprints.items() if known.fingerprints.get(step) == fingerprint]
    if known.table is None or not same:
        return [], list(fingerprints)
    whole = len(same) == len(known.fingerprints)
    kept = known.table if whole else known.table.filter(pc.is_in(known.table["step"], pa.array(same)))
    return [kept], sorted(fingerprints.keys() - set(same))


def _by_step(pieces: Sequence[pa.Table]) -> pa.Table:
    """All rows, in the order of steps; a step is in one of the pieces."""
    table = pa.concat_tables(pieces)
    steps = table["step"].to_numpy()
    if (np.diff(steps) < 0).any():
        table = table.take(np.argsort(steps, kind="stable"))
    return table.combine_chunks() if table["step"].num_chunks > _PIECES else table
