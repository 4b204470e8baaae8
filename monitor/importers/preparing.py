"""Some files of an import → their pieces: the function that is mapped over the files, by this machine's threads or on a Ray cluster.

Reads and takes apart, writes nothing. What it returns of a file is bounded; of a larger one the rest is left to the caller.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.importers.parsing import Piece, Wanted
from logprobe.monitor.importers.reading import Reading

BATCH_BYTES: Final = 8 << 20  # of files that are one task; a larger file is one by itself
BATCH_FILES: Final = 256
FILE_BYTES: Final = 256 << 20  # of rows that a task returns of one file, about

_KEPT: Final = threading.local()  # the reading process of a worker: to start one takes longer than to read a small file


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive files of an import. `form`: a name of `formats.FORMATS`; `sizes`: of the files, as the caller sees them."""

    form: str
    files: tuple[Wanted, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made of one file. `rest`: whether more is to come; `failure`: why it ended early; `host`: who says so."""

    pieces: list[Piece] = field(default_factory=list)
    rest: bool = False
    failure: Exception | None = None
    host: str = ""


def prepare(batch: Batch) -> list[Prepared]:
    """One entry per file; none after the first that failed."""
    found = []
    for wanted, size in zip(batch.files, batch.sizes, strict=True):
        found.append(_prepared(batch.form, wanted, size))
        if found[-1].failure is not None:
            break
    return found


def after(wanted: Wanted, done: list[Piece]) -> Wanted:
    """What is left to ask for."""
    if not done:
        return wanted
    return replace(wanted, known=wanted.known[len(done) :], position=done[-1].end, offset=done[-1].offset)


def batches(form: str, files: Iterable[tuple[Wanted, int]]) -> Iterator[Batch]:
    """Files with their sizes, in batches.

    >>> from pathlib import Path
    >>> sizes = [5 << 20, 5 << 20, 1, 2, 9 << 20, 3]
    >>> [batch.sizes for batch in batches("jsonl", ((Wanted(Path("a"), "a", ""), size) for size in sizes))]
    [(5242880,), (5242880, 1, 2), (9437184,), (3,)]
    """
    chosen: list[tuple[Wanted, int]] = []
    total = 0
    for wanted, size in files:
        if chosen and (total + size > BATCH_BYTES or len(chosen) >= BATCH_FILES):
            yield _batch(form, chosen)
            chosen, total = [], 0
        chosen.append((wanted, size))
        total += size
    if chosen:
        yield _batch(form, chosen)


def _batch(form: str, chosen: Iterable[tuple[Wanted, int]]) -> Batch:
    files, sizes = zip(*chosen, strict=True)
    return Batch(form, files, sizes)


def _prepared(form: str, wanted: Wanted, size: int) -> Prepared:
    host, reading = socket.gethostname(), _reading(form)
    done: list[Piece] = []
    try:
        if wanted.path.stat().st_size < size:
            raise FileNotFoundError(f"{wanted.path} has {wanted.path.stat().st_size:,} of {size:,} bytes")
        held = 0
        for piece in reading.pieces(wanted):
            done.append(piece)
            held += sum(table.nbytes for table in piece.tables.values())
            if held > FILE_BYTES and not piece.last:
                reading.close()  # it is in the middle of the file
                return Prepared(done, rest=True, host=host)
    except (LogprobeError, OSError) as error:
        reading.close()
        return Prepared(done, failure=error, host=host)
    return Prepared(done, host=host)


def _reading(form: str) -> Reading:
    """Of this thread; ends with it."""
    kept: Reading | None = getattr(_KEPT, "reading", None)
    if kept is None or kept.form != form:
        kept = _KEPT.reading = Reading(form)
    return kept
