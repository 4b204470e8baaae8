"""Status documents of the service, as readers get them: in JSON, so that times are texts there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, TypedDict


class Ingested(TypedDict):
    """Result of one run of ingest: counts, and how far behind the store is.

    `late`: segments of deleted runs. `remaining`: segments. `lag_seconds`: age of the oldest one when the run began;
    None: there was none. `stuck`: files that cannot be read now, which wait for another try. `problems`: what could not
    be moved or removed.
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
    """Segments that wait in the spool.

    `oldest_seconds`: age of the oldest segment; None: nothing waits. `waiting_seconds`: the same of each run that has
    any; `newest_seconds`: age of its newest. `unreadable`: folders and files that could not even be looked at, so that
    what is in them is not counted.
    """

    segments: int
    bytes: int
    oldest_seconds: float | None
    waiting_seconds: dict[str, float]
    newest_seconds: dict[str, float]
    unreadable: int


class StuckFile(TypedDict):
    """A file or folder in the spool that cannot be read now. `since`: seconds since 1970; `run`: None: not known."""

    path: str
    run: str | None
    error: str
    since: float
    attempts: int
    retry_seconds: float


class Stuck(TypedDict):
    """Number of those that cannot be read now, for how long the first of them could not, and the longest-waiting
    ones."""

    number: int
    seconds: float | None
    files: list[StuckFile]


class JobAccount(TypedDict):
    """Account of a job's runs. `progress`: what it did last, in its own words."""

    job: str
    started_at: datetime | str | None
    finished_at: datetime | str | None
    runs: int
    failures: int
    last_error: str | None
    progress: Mapping[str, Any]


class Status(TypedDict):
    """The service: who, since what time, its jobs, its backlog, and what cannot be read now. Only `running` where there
    is none."""

    running: bool
    home: NotRequired[str]
    pid: NotRequired[int]
    started: NotRequired[str]
    jobs: NotRequired[dict[str, JobAccount]]
    backlog: NotRequired[Backlog]
    stuck: NotRequired[Stuck]
