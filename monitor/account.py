"""The account of the jobs in the store, so that it outlives the service: one row of `job_runs` per job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from logprobe.monitor.jobs import Job
from logprobe.monitor.store import Store

_SAVE: Final = """
INSERT OR REPLACE INTO job_runs (job, started_at, finished_at, runs, failures, last_error, progress)
VALUES ($job, $started_at, $finished_at, $runs, $failures, $last_error, $progress)
"""


def restore(store: Store, jobs: Sequence[Job]) -> None:
    """Lets the jobs count on from where the last service stopped. Raises `QueryError` when the store cannot be read."""
    known = {row["job"]: row for row in store.read("job_runs").to_pylist()}
    for job in jobs:
        if job.name in known:
            job.restore(known[job.name]["runs"], known[job.name]["failures"])


def save(store: Store, jobs: Sequence[Job]) -> None:
    """Writes all accounts in one transaction. Raises `StoreError`."""
    with store.transaction() as cursor:
        for job in jobs:
            account = job.account()
            cursor.execute(_SAVE, {**account.document(), "progress": json.dumps(account.progress, default=str)})
