"""Defaults for the retention of a data directory and the memory of a service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
KEEP_GIB: Final = 50.0  # of raw tokens
KEEP_STORE_GIB: Final = 10.0  # of the store
_LEAST_MEMORY: Final = 256 * MIB
_GROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int:
    """Return the memory limit of this process in bytes, from the machine or its container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for path in _GROUPS if (limit := _number(Path(path))) is not None)])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None


def store_memory() -> int:
    """Return the memory limit of the service's DuckDB instance: an eighth of the machine, at most 1 GiB.

    DuckDB spills larger intermediate results to the disk.
    """
    return max(2 * _LEAST_MEMORY, min(GIB, machine_memory() // 8))


def query_memory() -> int:
    """Return the additional memory of a user's statement: a quarter of the machine, at most 2 GiB."""
    return max(_LEAST_MEMORY, min(2 * GIB, machine_memory() // 4))


def size(count: int) -> str:
    """Return a number of bytes as text.

    >>> size(3 << 29), size(128 << 20)
    ('1.5 GiB', '128 MiB')
    """
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / MIB:.3g} MiB"
