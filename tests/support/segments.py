"""Small spool segments with known content, for tests of everything behind the spool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SegmentPath, SpoolWriter

RUN = "run"
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Clock:
    """Seconds that pass when told to."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def at(seconds: float) -> datetime:
    """A time, in seconds since the tests' epoch."""
    return START + timedelta(seconds=seconds)


def records(kind: str, *rows: dict[str, Any]) -> pa.Table:
    """Records of one kind; what a row does not mention is null."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[kind])


def spool(home: Path, run: str = RUN, writer: str = "w", **kinds: Iterable[dict[str, Any]]) -> list[SegmentPath]:
    """Writes rows by record kind, each kind as a segment."""
    to = SpoolWriter(home, run, writer)
    return [to.write(kind, records(kind, *rows)) for kind, rows in kinds.items()]


def trained(sample_id: str, step: int = 0, n: int = 4, *, received: bool = True, **fields: Any) -> dict[str, Any]:
    """A training record of `n` tokens with ids 0, 1, …; r is −1, −2, … and t = r + 0.5."""
    r = [-float(i + 1) for i in range(n)]
    row: dict[str, Any] = {
        "time": at(step),
        "step": step,
        "rank": 0,
        "sample_id": sample_id,
        "token_ids": list(range(n)),
        "mask": [True] * n,
        "trainer_logprobs": [value + 0.5 for value in r],
    }
    if received:
        row["rollout_logprobs"] = r
    return row | fields


def sampled(sample_id: str, n: int = 4, *, version: str | None = "v1", **fields: Any) -> dict[str, Any]:
    """A rollout record of `n` tokens with ids 0, 1, …; r is −1, −2, …"""
    row: dict[str, Any] = {
        "time": at(0),
        "sample_id": sample_id,
        "token_ids": list(range(n)),
        "logprobs": [-float(i + 1) for i in range(n)],
        "spans": [{"start": 0, "end": n, "version": version}],
    }
    return row | fields


def on_small_disk(folder: Path, megabytes: int, script: Path, *, seconds: float = 200.0) -> str:
    """Runs a script with a file system of this size as its argument, and returns what it printed.

    The file system is a real one (tmpfs) in a mount namespace of its own, so it needs no root and vanishes with the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mount_and_run = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && exec "$3" "$4" "$2"'
    arguments = [f"{megabytes}m", str(folder), sys.executable, str(script)]
    done = subprocess.run(
        [*namespace, "sh", "-c", mount_and_run, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{script.name} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout
