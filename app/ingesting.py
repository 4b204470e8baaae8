"""Ingestion of the spool's backlog, through the service or without one, as in `logprobe up --once`."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from logprobe.app.text.terminal import progress
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.service.pipeline import Pipeline, backlog, note_spooled
from logprobe.monitor.service.status import Ingested
from logprobe.monitor.store.store import Store


def take(home: Home) -> Ingested:
    """Ingest the segments in the spool, through the service if one runs."""
    try:
        with connect(home) as reader:
            return reader.ingest()
    except ServiceUnavailableError:
        return _alone(home)


def _alone(home: Home) -> Ingested:
    """Ingest without a service, under the lock of the data directory. Raises `HomeBusyError` if another process holds
    the lock.
    """
    with home.lock(), Store.open(home) as store:
        pipeline = Pipeline(store, threading.Event())
        waiting = backlog(home, store.archive.waits)["segments"]
        with progress("ingesting segments", waiting) as done:
            report = pipeline.ingest(lambda so_far: done(so_far["segments"]))
        pipeline.profile()
        # A segment stays in the spool until it is merged into the archive: ingested, it no longer waits.
        note_spooled(store, backlog(home, store.archive.waits), datetime.now(UTC))
    return report
