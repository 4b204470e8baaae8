"""What the service does with a bucket, or with what a Ray cluster brings."""

from __future__ import annotations

import threading
import time
from typing import Final

from logprobe.collectors.addresses import checked
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor.service.jobs import Job, Part, PartMaker, Progress
from logprobe.monitor.shipped import nodes
from logprobe.monitor.shipped.nodes import InFolder, Nodes
from logprobe.monitor.store.store import Store

_ERASE_SECONDS: Final = 600.0  # between two looks at runs that were deleted long ago


def part(address: str | None) -> PartMaker:
    """Return what the service offers. `address`: of the bucket, or None."""

    def make(store: Store, _: threading.Event) -> Part:
        folder = Job("nodes", nodes.SECONDS, Nodes(store, InFolder(store.home)).once)
        return Part(jobs=[folder]) if address is None else _of_bucket(store, checked(address), folder)

    return make


def _of_bucket(store: Store, address: str, *more: Job) -> Part:
    from logprobe.collectors.shipping.bucket import Bucket  # noqa: PLC0415 - optional, and heavy
    from logprobe.monitor.shipped import pulling, telling  # noqa: PLC0415 - likewise

    bucket, tombstones = Bucket(address), store.archive.tombstones
    is_deleted = tombstones.__contains__
    puller = pulling.Puller(bucket, store.home, lambda folder: is_deleted(run_name(folder)))
    publisher = telling.Publisher(bucket, store.home, puller.state, is_deleted)
    erased: dict[str, float] = {}

    def pull() -> Progress:
        done = puller.once()
        for run in [tombstone.run for tombstone in tombstones.all()]:
            if erased.get(run, 0.0) < time.monotonic():
                puller.erase(run)
                erased[run] = time.monotonic() + _ERASE_SECONDS
        return done

    notes = Nodes(store, nodes.InBucket(bucket))
    jobs = [
        Job("pull", pulling.SECONDS, pull),
        Job("tell", telling.SECONDS, publisher.once),
        Job("bucket_nodes", nodes.SECONDS, notes.once),
        *more,
    ]
    return Part(jobs=jobs, close=puller.close)
