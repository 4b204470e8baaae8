"""What the soak measures of a process, a home and a store, at one moment."""

from __future__ import annotations

import os
from pathlib import Path

from logprobe.monitor.reader import FlightReader

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
ARENA = 64 * MIB  # glibc maps each further arena at a multiple of this


def process(pid: int) -> dict[str, float]:
    """Memory in MiB, processor seconds so far, threads, open files, and malloc arenas with a page of memory."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    rollup = dict(line.split(":") for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
    kib = {name: int(value.split()[0]) for name, value in rollup.items()}
    return {
        "rss_mib": kib["Rss"] / 1024,
        "pss_mib": kib["Pss"] / 1024,
        "anonymous_mib": kib["Anonymous"] / 1024,
        "cpu_s": (int(fields[11]) + int(fields[12])) / TICKS,
        "threads": float(fields[17]),
        "fds": float(sum(1 for _ in (folder / "fd").iterdir())),
        "arenas": float(_arenas(folder)),
    }


def _arenas(folder: Path) -> int:
    starts = (int(line.split("-")[0], 16) for line in (folder / "maps").read_text().splitlines())
    return sum(start % ARENA == 0 for start in starts)


def home(folder: Path) -> dict[str, float]:
    """Files below a home, and sizes in MiB of store, write-ahead log, raw tokens and spool."""
    sizes = {"store": 0, "wal": 0, "raw": 0, "spool": 0, "quarantine": 0}
    files = 0
    for path, _, names in os.walk(folder):
        part = Path(path).relative_to(folder).parts
        for name in names:
            try:
                size = Path(path, name).stat().st_size
            except FileNotFoundError:  # taken by the service meanwhile
                continue
            files += 1
            kind = part[0] if part else {".wal": "wal", ".duckdb": "store"}.get(Path(name).suffix, "")
            if kind in sizes:
                sizes[kind] += size
    return {"files": float(files), **{f"{name}_mib": size / MIB for name, size in sizes.items()}}


_STORE = """
SELECT (SELECT count(*) FROM statistics) AS statistics_rows, count(*) AS steps, coalesce(sum(sequences), 0) AS sequences FROM step_summaries
"""


def store(reader: FlightReader) -> dict[str, float]:
    """Rows of the service's store; nothing while it does not answer."""
    try:
        row = reader.query(_STORE).to_pylist()[0]
    except ConnectionError:
        return {}
    return {name: float(value) for name, value in row.items()}
