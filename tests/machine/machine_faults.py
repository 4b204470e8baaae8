"""Faults, most of them of before, planted one at a time.

`test_machine.py` has each of them found by a history; `machine_campaign.py --planted` looks for seeds that find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logprobe.alerts.controller import gather, job
from logprobe.alerts.controller.job import Memory
from logprobe.alerts.controller.situation import Acknowledgement, Control
from logprobe.alerts.sending import outbox
from logprobe.collectors import files
from logprobe.collectors.directives import Directives
from logprobe.collectors.errors import SegmentError, StoreError
from logprobe.collectors.recorder.writer import Writer
from logprobe.collectors.shipping.bucket import Bucket
from logprobe.collectors.spool import segments
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.live import ingest, restoring, tick
from logprobe.monitor.shipped.mirror import Mirror
from logprobe.monitor.shipped.pulling import Puller
from logprobe.monitor.store import archive, frozen, tombstone
from logprobe.monitor.store.archive import Archive
from logprobe.monitor.store.archive_identity import IDENTITY
from logprobe.monitor.store.said import Said

Change = tuple[Any, str, Any]


def not_synced(path: Path, content: bytes, *, mode: int = 0o600, disk: files.Disk = files.DISK) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    files.make_durable(path.parent, disk)
    descriptor = files.os.open(unfinished, files._NEW, mode)
    files.os.write(descriptor, content)
    files.os.close(descriptor)
    files.os.replace(unfinished, path)


def there_is_durable(folder: Path, disk: files.Disk = files.DISK) -> None:
    if not disk.is_folder(folder):
        there_is_durable(folder.parent, disk)
        disk.mkdir(folder)


def gone_before(self: Archive, run: str, kind: str, group: Any, report: Any) -> None:
    self._unlink(group)
    merge(self, run, kind, group, report)


def another_number(self: SpoolWriter, segment: Any) -> None:
    try:
        put(self, segment)
    except OSError:
        if self._owed is not None:
            self._owed, self.number = None, self.number + 1
        raise


def damaged(where: Any, work: Callable[[], Any]) -> Any:
    found = guarded(where, work)
    return SegmentError("unreadable", str(found)) if isinstance(found, OSError) else found


def unsaid(self: Writer, item: Any, reason: str, message: str) -> None:
    self._health.drop(reason, message, calls=1, sequences=item.sequences, tokens=item.tokens, step=item.step)


def unsaid_reduction(self: Writer, batch: Any, pressure: str) -> None:
    self._health.drop("raw_reduced", pressure, sequences=batch.sequences, tokens=batch.tokens, step=batch.step)


def from_the_first(home: Any, run: str, row: Any) -> Memory:
    return Memory(Control(), Directives(run)) if row is None else understood(home, run, row)


def not_proven(self: Bucket, name: str, content: bytes) -> None:
    from logprobe.collectors.shipping import bucket

    with self._explained(name):
        bucket.obstore.put(self._store, name, content)


def not_mirrored(self: Mirror, runs: Any) -> set[str]:
    return set(runs)


def frozen_again(store: Any, file: Any, unknown: Any) -> None:
    rows, ledger = store.archive.table(file), restoring._ledger(store, file, unknown)
    with store.standing_still(), store.transaction() as cursor:
        frozen.write(store, cursor, file.run, rows)
        store.execute(cursor, "append", ledger, table="segments")


def acknowledged_by_none(store: Any, run: str, first: int, last: int) -> tuple[Acknowledgement, ...]:
    found = acknowledgements(store, run, first, last)
    row = job.records(store, [run])[run]
    config = Control.parse(job.json.loads(row["control"])).config
    return found if config is None else tuple(replace(each, fingerprint=config.fingerprint()) for each in found)


def in_its_place(self: SpoolWriter, segment: Any) -> None:
    self._disk.mkdir(self.directory.parent)
    make_durable(self.directory, self._disk)
    self._disk.write(segment.where.path, memoryview(segment.data), mode=None)
    self._disk.sync(self.directory)
    self.number = segment.where.sequence


def unsynced_append(self: files.Disk, path: Path, content: bytes, *, mode: int = 0o600) -> None:
    descriptor = files.os.open(path, files._END, mode)
    files.os.write(descriptor, content)
    files.os.close(descriptor)


def gone_unsaid(self: Archive) -> Any:
    return replace(changes(self), gone=[])


def any_folder(home: Path, folder: Path, **how: Any) -> str:
    try:
        return identify(home, folder, **how)
    except StoreError:
        return (home / IDENTITY).read_text().strip()


def left_in_the_archive(self: Archive, run: str) -> int:
    self._runs.pop(run, None)
    return 0


def unsynced_segment(self: SpoolWriter, segment: Any) -> None:
    make_durable(self.directory, self._disk)
    self._disk.write(segment.where.temporary, memoryview(segment.data), mode=None)
    self._disk.rename(segment.where.temporary, segment.where.path)
    self.number = segment.where.sequence


def sent_before(store: Any, delivery: Any, *, now: Any, next_at: Any) -> None:
    outbox.sent(store, delivery, {}, now)


def held_up(self: Puller, entry: Any) -> Any:
    landed = land(self, entry)
    if isinstance(landed, OSError) and not isinstance(landed, SegmentError):
        raise landed
    return landed


merge, put, guarded, understood = Archive._merge, SpoolWriter._put, ingest._guarded, job.understood
acknowledgements, make_durable = gather._acknowledgements, files.make_durable
land = Puller._land
changes, identify = Archive.changes, archive.identify


@dataclass(frozen=True)
class Fault:
    """A fault, the commit that fixed it (none: it was made up for a promise), and the history that finds it."""

    commit: str
    changes: list[Change]
    history: str
    bucket: bool = False


PLANTED: dict[str, Fault] = {
    "a refused segment is written again under another number": Fault(
        "14c3bc39", [(SpoolWriter, "_put", another_number)], "an answer is lost"
    ),
    "a folder counts as durable because it is there": Fault(
        "89b9cf5d", [(module, "make_durable", there_is_durable) for module in (files, segments)], "power goes"
    ),
    "a flush confirms what a failing disk has lost": Fault(
        "622c3c2d",
        [(Writer, "_lose", unsaid), (Writer, "_count_reduction", unsaid_reduction)],
        "a full disk",
    ),
    "a file that cannot be read is taken for a damaged one": Fault(
        "5c527fbb", [(ingest, "_guarded", damaged)], "what cannot be read waits"
    ),
    "a merged file is not synced before its segments go": Fault(
        "29fad09f", [(archive, "replace_file", not_synced)], "power goes"
    ),
    "segments go before their file is there": Fault(
        "16b22b26", [(Archive, "_merge", gone_before)], "the service is killed on its way"
    ),
    "what is merged is merged again": Fault(
        "29fad09f", [(Archive, "holds", lambda self, run, segment: False)], "copies come late"
    ),
    "a tombstone is not durable": Fault("dbbaa3d0", [(tombstone, "replace_file", not_synced)], "deletions stay"),
    "records of a deleted run count when they come late": Fault(
        "c0018aba",
        [
            (ingest.Ingester, "_without_deleted", lambda self, waiting, report: list(waiting)),
            (tombstone.Tombstones, "refuse", lambda self, run: None),
        ],
        "a deleted run goes on",
    ),
    "a lost index forgets what users and the controller did": Fault(
        "817b1beb", [(Said, "keep", lambda self: None)], "a user is remembered"
    ),
    "directives begin with the first once index and journal are lost": Fault(
        "433c0925", [(job, "understood", from_the_first)], "directives keep their numbers"
    ),
    "an attempt to send is not noted before it begins": Fault(
        "fd738c87", [(outbox, "begin", lambda *_, **__: None)], "a message kills its sender"
    ),
    "an upload is not proven": Fault("c6384c79", [(Bucket, "put", not_proven)], "uploads are spoiled", bucket=True),
    "an object goes before the bucket has its file": Fault(
        "c6384c79", [(Mirror, "_keep", not_mirrored)], "the service loses its machine", bucket=True
    ),
    "what a later attempt trained again is frozen by a new index": Fault(
        "c27b17e4", [(ingest, "restore_frozen", frozen_again)], "a frozen step is trained again"
    ),
    "late records of a closed step count alone": Fault(
        "e3c5c165", [(tick, "recall", lambda *_: set())], "the engine is late"
    ),
    "a correction is applied because any was stated": Fault(
        "2f10f337", [(gather, "_acknowledgements", acknowledged_by_none)], "a trainer has a correction of its own"
    ),
    "a segment has its name before it is whole": Fault(
        "", [(SpoolWriter, "_put", in_its_place)], "a recorder is killed"
    ),
    "a segment's name is not durable": Fault("", [(SpoolWriter, "_put", unsynced_segment)], "power goes"),
    "a message counts as sent before it arrives": Fault(
        "", [(outbox, "begin", sent_before)], "a message kills its sender"
    ),
    "what a user said is not durable": Fault("", [(files.Disk, "append", unsynced_append)], "a user is remembered"),
    "a start takes any folder for its archive": Fault(
        "",
        [(archive, "identify", any_folder), (archive, "require", lambda *_, **__: None)],
        "a folder fails or is another",
    ),
    "files of others go with a deleted run": Fault(
        "", [(Archive, "_is_ours", lambda self, run, path: True)], "somebody lays files into the archive"
    ),
    "unfinished files stay": Fault(
        "", [(archive, "_is_unfinished", lambda path: False)], "the service is killed on its way"
    ),
    "the index lists files that are gone": Fault("", [(Archive, "changes", gone_unsaid)], "tokens go and steps freeze"),
    "a deleted run stays in the archive": Fault("", [(Archive, "erase", left_in_the_archive)], "a deleted run goes on"),
    "a run's folder that refuses holds up what a bucket has of others": Fault(
        "", [(Puller, "_land", held_up)], "a folder fails or is another", bucket=True
    ),
}
