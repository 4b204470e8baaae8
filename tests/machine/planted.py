"""Faults of before, planted back one at a time, with the commit that fixed each.

`machine_campaign.py --planted` says which are found, and after how long; `README.md` has what it said last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from logprobe.alerts.controller import gather, job
from logprobe.alerts.controller.job import Memory
from logprobe.alerts.controller.situation import Acknowledgement, Control
from logprobe.alerts.sending import outbox
from logprobe.collectors import files
from logprobe.collectors.directives import Directives
from logprobe.collectors.errors import SegmentError
from logprobe.collectors.recorder.writer import Writer
from logprobe.collectors.shipping.bucket import Bucket
from logprobe.collectors.spool import segments
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.live import ingest, tick
from logprobe.monitor.shipped.mirror import Mirror
from logprobe.monitor.store import archive, archiving, tombstone
from logprobe.monitor.store.archive import Archive
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


def frozen_again(self: archiving.Archiving, file: Any, segments: Any) -> None:
    take_in_frozen(self, file, segments)
    with self._store.standing_still(), self._store.transaction() as cursor:
        rows = self.table(file)
        self._store.execute(cursor, "forget_steps", rows.select(["run", "step"]), table="all_sequences")


def acknowledged_by_none(store: Any, run: str, first: int, last: int) -> tuple[Acknowledgement, ...]:
    found = acknowledgements(store, run, first, last)
    row = job.records(store, [run])[run]
    config = Control.parse(job.json.loads(row["control"])).config
    return found if config is None else tuple(replace(each, fingerprint=config.fingerprint()) for each in found)


merge, put, guarded, understood = Archive._merge, SpoolWriter._put, ingest._guarded, job.understood
take_in_frozen, acknowledgements = archiving.Archiving.take_in_frozen, gather._acknowledgements

PLANTED: dict[str, tuple[str, list[Change]]] = {
    "a refused segment is written again under another number": ("14c3bc39", [(SpoolWriter, "_put", another_number)]),
    "a folder counts as durable because it is there": (
        "89b9cf5d",
        [(module, "make_durable", there_is_durable) for module in (files, segments)],
    ),
    "a flush confirms what a failing disk has lost": (
        "622c3c2d",
        [(Writer, "_lose", unsaid), (Writer, "_count_reduction", unsaid_reduction)],
    ),
    "a file that cannot be read is taken for a damaged one": ("5c527fbb", [(ingest, "_guarded", damaged)]),
    "a merged file is not synced before its segments go": ("29fad09f", [(archive, "replace_file", not_synced)]),
    "segments go before their file is there": ("16b22b26", [(Archive, "_merge", gone_before)]),
    "what is merged is merged again": ("29fad09f", [(Archive, "holds", lambda self, run, segment: False)]),
    "a tombstone is not durable": ("dbbaa3d0", [(tombstone, "replace_file", not_synced)]),
    "records of a deleted run count when they come late": (
        "c0018aba",
        [(ingest.Ingester, "_without_deleted", lambda self, waiting, report: list(waiting))],
    ),
    "a lost index forgets what users and the controller did": ("817b1beb", [(Said, "keep", lambda self: None)]),
    "directives begin with the first once index and journal are lost": (
        "433c0925",
        [(job, "understood", from_the_first)],
    ),
    "an attempt to send is not noted before it begins": ("fd738c87", [(outbox, "begin", lambda *_, **__: None)]),
    "an upload is not proven": ("c6384c79", [(Bucket, "put", not_proven)]),
    "an object goes before the bucket has its file": ("c6384c79", [(Mirror, "_keep", not_mirrored)]),
    "what a later attempt trained again is frozen by a new index": (
        "c27b17e4",
        [(archiving.Archiving, "take_in_frozen", frozen_again)],
    ),
    "late records of a closed step count alone": ("e3c5c165", [(tick, "recall", lambda *_: set())]),
    "a correction is applied because any was stated": (
        "2f10f337",
        [(gather, "_acknowledgements", acknowledged_by_none)],
    ),
}
