"""Durations of weight publications, from the step to the engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

TIMES: Final = ("requested_at", "started_at", "applied_at", "resumed_at")
_BY_USE: Final = ("applied_at", "resumed_at", "started_at", "requested_at")  # by which records are put in order
Record = Mapping[str, Any]  # of weights, its `TIMES` in microseconds
Durations = tuple[float | None, float | None, float | None]  # until applied, until resumed, of the pause
Row = tuple[int, str, float | None, float | None, float | None]  # place of the step, version, `Durations`


def publication_rows(places: Mapping[tuple[str, int], int], records: Sequence[Record]) -> list[Row]:
    """Return one row per step of `places` (run and step), version and replica, in seconds.

    A duration is None if a time is unknown or clocks contradict each other. `records`: all records of each version.
    """
    version_of = itemgetter("run", "version")
    rows: list[Row] = []
    for (run, version), group in groupby(sorted(records, key=version_of), key=version_of):
        of_version = list(group)
        # Whoever knows of which step these weights are the result says it for all.
        step = min((record["step"] for record in of_version if record["step"] is not None), default=None)
        if step is not None and (place := places.get((run, step))) is not None:
            rows += ((place, version, *row) for row in _of_replicas(of_version))
    return sorted(rows, key=itemgetter(0, 1))


def _of_replicas(records: Sequence[Record]) -> Iterator[Durations]:
    """Return the durations of one version by replica. `records`: all its records.

    Only the first record of an engine counts, since later ones are reloads. Without engine records, the trainer's
    count.
    """
    engines = any(record["source"] == "engine" for record in records)
    heard = [r for r in records if r["source"] is not None and (r["source"] == "engine") == engines]
    first: dict[str | None, Record] = {}
    for record in sorted(heard, key=lambda r: [_or_last(r[name]) for name in _BY_USE]):
        first.setdefault(record["replica"], record)
    trainers = [record for record in records if record["source"] == "trainer"]
    for replica in sorted(first, key=_or_last):
        record = first[replica]
        asked = [record, *(t for t in trainers if t["replica"] in {None, replica})]
        begun = min((t[name] for t in asked for name in TIMES[:2] if t[name] is not None), default=None)
        applied, resumed = record["applied_at"], record["resumed_at"]
        yield _seconds(begun, applied), _seconds(begun, resumed), _seconds(record["requested_at"], resumed)


def _or_last(value: Any) -> tuple[bool, Any]:
    """Return a sort key that puts unknown values last."""
    return value is None, value


def _seconds(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None or end < begin else (end - begin) / 1e6
