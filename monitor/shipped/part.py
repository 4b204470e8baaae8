"""Part of the service for a bucket or a Ray cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from logprobe.collectors.addresses import checked
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.service.jobs import Job, Part, PartMaker, Progress
from logprobe.monitor.shipped import nodes
from logprobe.monitor.shipped.nodes import InFolder, Nodes
from logprobe.monitor.store.store import Store


def part(address: str | None) -> PartMaker:
    """Return the part of the service. `address`: address of the bucket, or None."""

    def make(store: Store, _: threading.Event) -> Part:
        folder = Job("nodes", nodes.SECONDS, Nodes(store, InFolder(store.home)).once)
        return Part(jobs=[folder]) if address is None else _of_bucket(store, checked(address), folder)

    return make


def restore(address: str | None) -> Callable[[Home], None]:
    """Return the function that prepares a data directory before its store is opened. `address`: address of the bucket,
    or None."""

    def prepare(home: Home) -> None:
        if address is not None:
            from logprobe.collectors.shipping.bucket import Bucket  # noqa: PLC0415 - optional, and heavy
            from logprobe.monitor.shipped import mirror  # noqa: PLC0415 - likewise

            mirror.restore(Bucket(checked(address)), home)

    return prepare


def _of_bucket(store: Store, address: str, *more: Job) -> Part:
    from logprobe.collectors.shipping.bucket import Bucket  # noqa: PLC0415 - optional, and heavy
    from logprobe.monitor.shipped import mirror, pulling, telling  # noqa: PLC0415 - likewise

    def known(ids: list[str]) -> list[str]:
        found: list[str] = queries.known_segments(store, pa.table({"segment_id": ids}))["segment_id"].to_pylist()
        return found

    bucket, is_deleted = Bucket(address), store.archive.tombstones.__contains__
    mirrored = mirror.Mirror(bucket, store.home.path, known, is_deleted)
    puller = pulling.Puller(bucket, store.home, is_deleted)
    publisher = telling.Publisher(bucket, store.home, is_deleted)

    def keep() -> Progress:
        puller.owner.require()
        return {"removed": mirrored.once(dict(puller.landed), set(puller.late))}

    def close() -> None:
        puller.close()
        mirrored.close()

    notes = Nodes(store, nodes.InBucket(bucket))
    jobs = [
        Job("pull", pulling.SECONDS, puller.once),
        Job("mirror", mirror.SECONDS, keep),
        Job("tell", telling.SECONDS, publisher.once),
        Job("bucket_nodes", nodes.SECONDS, notes.once),
        *more,
    ]
    return Part(jobs=jobs, close=close)
