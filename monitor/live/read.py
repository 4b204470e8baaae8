"""Decode and verify segments: the rows of each kind that can be used, and the files that cannot be trusted or read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.segments import Segment, SegmentPath, read_segment
from logprobe.monitor.ingest.soundness import SoundRows, sound_rows, sound_together

# Errors that the content of a segment can provoke. Any other error says only that it cannot be read now.
_CONTENT: Final = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError)


@dataclass(frozen=True, slots=True)
class Read:
    """A verified segment and its usable rows."""

    segment: Segment
    rows: SoundRows


@dataclass(slots=True)
class Reading:
    """Outcome of reading some files: segments, those that belong into quarantine, and those to be tried again."""

    segments: list[Read] = field(default_factory=list)
    refused: list[tuple[SegmentPath, SegmentError]] = field(default_factory=list)
    waiting: list[tuple[SegmentPath, Exception]] = field(default_factory=list)

    def tables(self) -> dict[str, pa.Table]:
        """Return the usable rows by record kind, with ``run``, ``segment_id``, ``row`` and ``writer``."""
        by_kind = attrgetter("segment.where.kind")
        return {kind: _together(list(some)) for kind, some in groupby(sorted(self.segments, key=by_kind), key=by_kind)}


def read(places: Iterable[SegmentPath]) -> Reading:
    """Read files of the spool. A file that has gone meanwhile is left out."""
    result, segments = Reading(), []
    for where in places:
        try:
            segments.append(read_segment(where))
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - the boundary of one file: it is named, and holds up no other
            _sort_in(where, error, result)
    _check(segments, result)
    return result


def _check(segments: Sequence[Segment], result: Reading) -> None:
    """Find the usable rows; segments of one kind are looked at together where nothing is wrong with any of them."""
    kind = attrgetter("where.kind")
    for _, group in groupby(sorted(segments, key=kind), key=kind):
        some = list(group)
        together: Sequence[SoundRows | None] = [None] * len(some)
        with suppress(Exception):  # whatever it is, it comes again with the one whose it is
            together = (sound_together(some) if len(some) > 1 else None) or together
        for segment, rows in zip(some, together, strict=True):
            try:
                result.segments.append(Read(segment, rows or sound_rows(segment)))
            except Exception as error:  # noqa: BLE001 - as above
                _sort_in(segment.where, error, result)


def _sort_in(where: SegmentPath, error: Exception, result: Reading) -> None:
    if isinstance(error, SegmentError):
        result.refused.append((where, error))
    elif isinstance(error, _CONTENT):
        result.refused.append((where, SegmentError("unreadable", f"{where.path}: cannot be decoded ({error})")))
    else:
        result.waiting.append((where, error))


def _together(reads: Sequence[Read]) -> pa.Table:
    table = pa.concat_tables([read.rows.table for read in reads])
    writers = np.repeat(np.arange(len(reads)), [read.rows.table.num_rows for read in reads])
    names = pa.array([read.segment.writer for read in reads], pa.string())
    return table.append_column("writer", names.take(pa.array(writers))).combine_chunks()
