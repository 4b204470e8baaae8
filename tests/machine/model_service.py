"""A small service on the product's archive, tiers, tombstones and journal: what a tick, a minute, retention, a deletion, a
user and a message do, in the order in which the product is to do it.

A record is a training sequence; its number is r of its only token. A step's metric is the exact sum of its numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import SegmentError, StoreError
from logprobe.collectors.files import Disk
from logprobe.collectors.spool.segments import Segment, SegmentPath, decoded_segment, run_dir, run_name, spool_dir
from logprobe.monitor.store import tiers
from logprobe.monitor.store.archive import Archive
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES, Merged
from logprobe.monitor.store.journal import Entry, Journal, latest
from logprobe.monitor.store.merging import Merger
from logprobe.monitor.store.tombstone import Deletion, Tombstones

KEYS = {"silence": ("id",), "accept": ("run",), "correction": ("run",), "sending": ("key",), "sent": ("key",)}
Number = tuple[int, str, float]  # step, sample, value


class Index(Protocol):
    """What can be deleted at any time. Each method is one transaction."""

    def known(self, run: str) -> set[str]: ...
    def files(self) -> set[str]: ...
    def take_in(self, run: str, rows: dict[str, list[Number]], files: Iterable[str]) -> None: ...
    def replace(self, run: str, segments: set[str], path: str, rows: list[Number]) -> None: ...
    def freeze(self, run: str, segments: set[str], path: str, steps: dict[int, float]) -> None: ...
    def drop_files(self, paths: Iterable[str]) -> None: ...
    def forget(self, run: str) -> None: ...
    def numbers(self, run: str) -> list[Number]: ...
    def frozen(self, run: str) -> dict[int, float]: ...
    def runs(self) -> set[str]: ...


@dataclass
class MemoryIndex:
    """An index whose transactions are whole or nothing."""

    segments: dict[str, set[str]] = field(default_factory=dict)
    rows: dict[str, dict[str, list[Number]]] = field(default_factory=dict)  # run → segment, or file of a tier → numbers
    steps: dict[str, dict[int, float]] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def known(self, run: str) -> set[str]:
        return self.segments.get(run, set())

    def files(self) -> set[str]:
        return set(self.paths)

    def take_in(self, run: str, rows: dict[str, list[Number]], files: Iterable[str]) -> None:
        self.segments.setdefault(run, set()).update(rows)
        self.rows.setdefault(run, {}).update(rows)
        self.paths.update(files)

    def replace(self, run: str, segments: set[str], path: str, rows: list[Number]) -> None:
        self._gone(run, segments)
        self.rows.setdefault(run, {})[path] = rows
        self.paths.add(path)

    def freeze(self, run: str, segments: set[str], path: str, steps: dict[int, float]) -> None:
        self._gone(run, segments)
        for step, value in steps.items():
            self.steps.setdefault(run, {}).setdefault(step, value)
        self.paths.add(path)

    def _gone(self, run: str, segments: set[str]) -> None:
        self.segments.setdefault(run, set()).update(segments)
        for segment in segments:
            self.rows.get(run, {}).pop(segment, None)

    def drop_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.paths.discard(path)
            self.rows.get(run_name(path.partition("/")[0]), {}).pop(path, None)

    def forget(self, run: str) -> None:
        for each in (self.segments, self.rows, self.steps):
            each.pop(run, None)
        self.paths = {path for path in self.paths if run_name(path.partition("/")[0]) != run}

    def numbers(self, run: str) -> list[Number]:
        steps = self.frozen(run)
        return [number for some in self.rows.get(run, {}).values() for number in some if number[0] not in steps]

    def frozen(self, run: str) -> dict[int, float]:
        return self.steps.get(run, {})

    def runs(self) -> set[str]:
        return self.segments.keys() | self.rows.keys() | self.steps.keys()


def numbers_of(table: pa.Table) -> list[Number]:
    values = [None if value is None else value[0] for value in table["rollout_logprobs"].to_pylist()]
    return list(zip(table["step"].to_pylist(), table["sample_id"].to_pylist(), values, strict=True))


class Service:
    """One life of the service, from its start to its end. `sends`: what came out of the network, by key."""

    def __init__(self, home: Path, index: Index, disk: Disk, time: Time, sends: list[str]) -> None:
        self.home, self.index, self.disk, self.time, self.sends = home, index, disk, time, sends
        self.done: Counter[str] = Counter()
        self.tombstones = Tombstones(home, disk=disk, time=time)
        self.archive = Archive(home, deleted=self.tombstones.__contains__, disk=disk, time=time)
        self.merger = Merger(self.archive, read=self._read, kept_bytes=1 << 13)  # some stay in memory
        self.deletion = Deletion(home, self.tombstones, self.archive, index.forget, others=self._others, disk=disk)
        self.journal = Journal(home, disk=disk, time=time)
        self.said: list[Entry] = []
        self.damaged: set[Path] = set()
        self.refused: list[str] = []

    def _read(self, where: SegmentPath) -> Segment:
        return decoded_segment(where, self.disk.read(where.path))

    def _others(self, run: str) -> list[Path]:
        return [self.home / "directives" / f"{run_dir(self.home, run).name}.json"]

    def start(self) -> None:
        """Raises `StoreError`: the service does not start."""
        self.tombstones.load()
        self.said = self.journal.open()
        for tombstone in self.tombstones.all():
            self.index.forget(tombstone.run)
        self.archive.open(self.index.files())
        self._note_changes()
        self.deletion.finish()

    def _note_changes(self) -> None:
        """Record other files in the index; a product does it in one transaction. Then copies can go."""
        changes = self.archive.changes()
        for file in changes.new:
            self._take_in_file(file)
        self.index.drop_files(changes.gone)
        self.archive.noted(changes)
        self.archive.sweep()

    def _take_in_file(self, file: Merged) -> None:
        if file.kind == FROZEN:
            table = self.archive.table(file)
            steps = dict(zip(table["step"].to_pylist(), table["value"].to_pylist(), strict=True))
            self.index.freeze(file.run, set(file.segments), file.path, steps)
        elif file.kind == SEQUENCES:
            rows = [tuple(row.values()) for row in self.archive.table(file).to_pylist()]
            self.index.replace(file.run, set(file.segments), file.path, rows)
        else:
            known = self.index.known(file.run)
            new = [segment for segment in self.archive.segments(file) if segment.segment_id not in known]
            rows = {segment.segment_id: numbers_of(segment.table) for segment in new}
            self.index.take_in(file.run, rows, [file.path])

    def tick(self) -> int:
        """Take in what lies in the spool and is new; return how many segments."""
        new: dict[str, dict[str, list[Number]]] = {}
        found = []
        spool = spool_dir(self.home)
        for run in self.disk.names(spool):
            for writer in self.disk.names(spool / run):
                for name in self.disk.names(spool / run / writer):
                    path = spool / run / writer / name
                    if name.startswith("."):
                        continue  # it is being written
                    where = SegmentPath.parse(path)
                    if where in self.merger or path in self.damaged:
                        continue
                    try:
                        segment = self._read(where)
                    except SegmentError as error:
                        self.refused.append(str(error))
                        self.damaged.add(path)
                        continue
                    if segment.where.run in self.tombstones:
                        self.disk.unlink(path)
                        continue
                    found.append(segment)
        for segment in found:
            run = segment.where.run
            if segment.segment_id not in self.index.known(run):
                new.setdefault(run, {})[segment.segment_id] = numbers_of(segment.table)
        for run, rows in new.items():
            self.index.take_in(run, rows, [])
        self.merger.add(found)
        return sum(map(len, new.values()))

    def minute(self) -> dict[str, str]:
        """Merge, and remove what is left of deleted runs; return what has to wait."""
        self.deletion.finish()
        report, refused = self.merger.run_once()
        self.refused += [str(error) for _, error in refused]
        self._note_changes()
        return report.waiting

    def compact(self, run: str) -> None:
        self.done["merged again"] += self.archive.compact(run)
        self._note_changes()

    def _oldest(self, run: str, kinds: Sequence[str], count: int) -> list[Merged]:
        files = [file for file in self.archive.files(run) if file.kind in kinds]
        return sorted(files, key=lambda file: (file.written, file.path))[:count]

    def reduce(self, run: str, count: int) -> None:
        """Replace the oldest token files of a run by statistics per sequence."""
        files = self._oldest(run, tiers.TOKENS, count)
        if not files:
            return
        rows = [number for file in files for number in numbers_of(self.archive.table(file))]
        table = pa.table(
            [pa.array(list(column)) for column in zip(*rows, strict=True)],
            pa.schema([("step", pa.int64()), ("sample_id", pa.string()), ("value", pa.float32())]),
        )
        tiers.reduce(self.archive, run, files, table)
        self.done["reduced"] += 1
        self._note_changes()

    def freeze(self, run: str, count: int) -> None:
        """Freeze the steps of the oldest files of a run; statistics of nothing else go, tokens stay."""
        files = self._oldest(run, (*tiers.TOKENS, *tiers.STATISTICS), count)
        if not files:
            return
        frozen = self.index.frozen(run).keys()
        touched = {step for file in files for step in self._steps(file)}
        steps = metrics(self.index.numbers(run), touched - frozen)
        table = pa.table({"step": pa.array(steps, pa.int64()), "value": pa.array(steps.values(), pa.float64())})
        statistics = [file for file in self.archive.files(run) if file.kind in tiers.STATISTICS]
        covered = [file for file in statistics if self._steps(file) <= touched | frozen]
        tiers.freeze(self.archive, run, covered, table)
        self.done["frozen"] += 1
        self.done["frozen with tokens"] += not covered
        self._note_changes()

    def _steps(self, file: Merged) -> set[int]:
        return set(self.archive.table(file)["step"].to_pylist())

    def act(self, kind: str, what: dict[str, Any]) -> None:
        """Do something of which the index would be the only trace; when this returns, it is confirmed to the user."""
        self.said.append(self.journal.append(kind, what))

    def send(self, key: str) -> None:
        """Send a message, unless it was sent, or may have been."""
        known = latest(self.said, KEYS)
        if (key,) in known["sent"] or (key,) in known["sending"]:
            return
        self.act("sending", {"key": key})
        self.sends.append(key)
        self.act("sent", {"key": key})

    def delete(self, run: str) -> None:
        self.deletion.delete(run, "the test")


def metrics(numbers: Iterable[Number], steps: Iterable[int]) -> dict[int, float]:
    wanted = set(steps)
    by_step: dict[int, list[float]] = {step: [] for step in sorted(wanted)}
    for step, _, value in numbers:
        if step in wanted:
            by_step[step].append(value)
    return {step: math.fsum(values) for step, values in by_step.items()}


__all__ = ["Index", "MemoryIndex", "Number", "Service", "StoreError", "metrics", "numbers_of"]
