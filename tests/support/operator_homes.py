"""Homes for tests of what operators do to them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import eventually, logprobe, record, service_process

from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader

# Fault → what `/healthz` answers at once: 503 with these words, or 200 with none; or what a service says that does not start.
# The table in tests/RESULTS.md is made of it.
FAULTS = {
    "`logprobe.duckdb` removed, or an older one put back": None,
    "The write-ahead log lost or cut": None,
    "The write-ahead log damaged": "is damaged",
    "`archive/` not mounted, at the start or later": "belongs to another data directory, or is not mounted",
    "`archive/` unmounted, or the home renamed or removed, under the service": "is no longer the folder that",
    "A copy of the home whose `archive/` is a link": "is in use by another process",
    "The home moved, with the service stopped": None,
    "A file of the archive damaged or unreadable": "cannot be read",
    "The disk full": "is full: make room",
    "The disk read-only, as Linux makes it after an error": "is read-only: mount it writable",
}

UNSTARTED = {"The write-ahead log damaged"}

SEQUENCES = "SELECT count(*) AS n, count(DISTINCT sample_id) AS d FROM sequences WHERE run = 'toy'"
TOKENS = "SELECT count(*) AS n FROM tokens WHERE run = 'toy'"


def health(home: Path) -> tuple[int, dict[str, Any]]:
    """What ``/healthz`` of the home's service answers."""
    info = Home(home).service_info()
    assert info is not None
    return health_at(info.health_port)


def health_at(port: int | None) -> tuple[int, dict[str, Any]]:
    """What ``/healthz`` answers at this port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def unwell(home: Path) -> str:
    """The one problem that ``/healthz`` names, once it does."""
    status, document = eventually(lambda: (said := health(home))[1]["problems"] and said, "/healthz names a problem")
    assert status == 503
    (problem,) = document["problems"]
    return str(problem)


def table() -> str:
    """What ``/healthz`` answers to which fault, as tests/RESULTS.md has it."""
    rows = [f"| {fault} | {_status(fault)} | {f'… {words} …' if words else ''} |" for fault, words in FAULTS.items()]
    return "\n".join(["| fault | `/healthz` | sentence |", "|---|---|---|", *rows])


def _status(fault: str) -> str:
    if fault in UNSTARTED:
        return "the service does not start, `up` ends"
    return "200" if FAULTS[fault] is None else "503"


def is_well(home: Path) -> bool:
    """Whether ``/healthz`` answers 200."""
    return health(home)[0] == 200


def raw_files(home: Path) -> set[str]:
    """Names of the raw files of runs."""
    return {path.name for path in home.glob("archive/[!!]*/*/*.parquet")}


def waiting(home: Path) -> int:
    """Segments that ingest has not taken yet."""
    return len(list(home.glob("spool/*/*/[!.]*.arrow")))


def stored(reader: FlightReader) -> tuple[int, int]:
    """Sequences and tokens of the run; no sequence is there twice."""
    (row,) = reader.query(SEQUENCES).to_pylist()
    assert row["n"] == row["d"]
    return row["n"], reader.query(TOKENS)["n"][0].as_py()


def ingested(home: Path, steps: range) -> None:
    """Records steps, and has them ingested; nothing has the home open then."""
    record(home, steps=steps)
    logprobe("up", "--once", "--home", home)


@contextmanager
def killed_service(home: Path) -> Iterator[FlightReader]:
    """A running service, killed with SIGKILL at the end of the block."""
    with service_process(home) as (reader, process):
        yield reader
        process.kill()
        process.wait()
