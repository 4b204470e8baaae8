"""Runs in files, opened: through the real ingest, into a store in a temporary folder."""

from __future__ import annotations

from pathlib import Path

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.exporters.bundle import read_manifest
from logprobe.monitor.home import Home
from logprobe.monitor.importers.importing import Importer
from logprobe.monitor.importers.reading import recorded_table
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.store.store import Store


def folder(path: Path, scratch: Path) -> tuple[str, Store]:
    """Name and store of the recorded run in `path`. Raises `SegmentError` when it cannot be trusted."""
    recorded = RecordedRun(path, recorded_table)
    writer = SpoolWriter(scratch, recorded.run, "recorded")
    for kind in recorded.kinds:
        writer.write(kind, recorded.table(kind))
    return recorded.run, _computed(Store.open(Home(scratch)))


def bundle(path: Path, scratch: Path) -> tuple[str, Store]:
    """Name and store of the run in a bundle. Raises `ConfigurationError` when it is none, or not what its manifest
    says."""
    run = str(read_manifest(path)["run"])
    store = Store.open(Home(scratch))
    try:
        importer = Importer(Home(scratch), run, store)
        importer.add(path)
    except BaseException:
        store.close()
        raise
    return run, _computed(store)


def _computed(store: Store) -> Store:
    try:
        Ingester(store).run_once()
    except BaseException:
        store.close()
        raise
    return store
