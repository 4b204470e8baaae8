"""Status documents of the service for readers, in JSON with times as texts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, TypedDict


class Ingested(TypedDict):
    """Result of one run of ingest, with counts and the backlog.

    `late`: number of segments of deleted runs. `remaining`: number of waiting segments. `lag_seconds`: age of the
    oldest segment when the run began, or None. `stuck`: unreadable files, which are retried. `problems`: files that
    could not be moved or removed.
    """

    segments: int
    rows: int
    tokens: int
    bytes: int
    duplicates: int
    quarantined: int
    late: int
    bad_rows: int
    remaining: int
    lag_seconds: float | None
    stuck: int
    problems: list[str]


class Backlog(TypedDict):
    """Segments waiting in the spool.

    `oldest_seconds`: age of the oldest segment, or None. `waiting_seconds`, `newest_seconds`: age of the oldest and
    newest one by run. `unreadable`: folders and files that could not be listed, whose content is not counted.
    """

    segments: int
    bytes: int
    oldest_seconds: float | None
    waiting_seconds: dict[str, float]
    newest_seconds: dict[str, float]
    unreadable: int


class StuckFile(TypedDict):
    """An unreadable file or folder in the spool. `since`: seconds since 1970. `run`: its run, or None if unknown."""

    path: str
    run: str | None
    error: str
    since: float
    attempts: int
    retry_seconds: float


class Stuck(TypedDict):
    """Number of unreadable files, the age of the first failure, and the oldest of them."""

    number: int
    seconds: float | None
    files: list[StuckFile]


class JobAccount(TypedDict):
    """Account of a job's runs. `progress`: its last result, as the job describes it."""

    job: str
    started_at: datetime | str | None
    finished_at: datetime | str | None
    runs: int
    failures: int
    last_error: str | None
    progress: Mapping[str, Any]


class Status(TypedDict):
    """Status of the service: identity, start, jobs, backlog and unreadable files, or only `running` without a
    service.
    """

    running: bool
    home: NotRequired[str]
    pid: NotRequired[int]
    started: NotRequired[str]
    jobs: NotRequired[dict[str, JobAccount]]
    backlog: NotRequired[Backlog]
    stuck: NotRequired[Stuck]
