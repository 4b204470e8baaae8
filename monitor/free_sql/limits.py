"""What people's statements may take of the machine, and the sentences that say so when they ask for more."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from logprobe.monitor.budgets import GIB

MIB: Final = 1 << 20
SWITCH: Final = "logprobe up --memory-limit"
LEAST_MEMORY: Final = 256 * MIB
_MOST_MEMORY: Final = 4 * GIB
_MOST_STORE_MEMORY: Final = GIB
_GROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int:
    """Bytes that this process can have at most: of the machine, or of the container around it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for path in _GROUPS if (limit := _number(Path(path))) is not None)])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None


def default_memory() -> int:
    """Of all statements together: a quarter of the machine, at most 4 GiB."""
    return max(LEAST_MEMORY, min(_MOST_MEMORY, machine_memory() // 4))


def store_memory() -> int:
    """Of the service's own DuckDB instance, which fills what it may have: an eighth of the machine, at most 1 GiB. More
    is spilled."""
    return max(2 * LEAST_MEMORY, min(_MOST_STORE_MEMORY, machine_memory() // 8))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of free SQL. A statement has no temporary space at all: what does not fit into its memory fails.

    `memory`: bytes of all statements together; `at_once`: how many run; `waiting`: how many more may wait for their
    turn, each no longer than `seconds`, which includes its run; `rows`: of a result.
    """

    memory: int = field(default_factory=default_memory)
    at_once: int = 2
    waiting: int = 32
    seconds: float | None = 55.0  # less than a reader waits, so that it hears the reason
    rows: int | None = 20_000_000

    @property
    def statement_memory(self) -> int:
        """Bytes of one statement."""
        return self.memory // self.at_once

    @property
    def result_bytes(self) -> int:
        """Of one result."""
        return self.statement_memory // 2

    @property
    def table_bytes(self) -> int:
        """Of what a statement reads from the store's tables."""
        return self.statement_memory // 2

    def too_much_memory(self) -> str:
        """The refusal of a statement that needs more."""
        return (
            f"the query needs more than {size(self.statement_memory)} of memory, the limit of one query; "
            f"narrow it down (WHERE run = … AND step …), or raise the limit: {SWITCH}"
        )

    def too_large_tables(self, table: str) -> str:
        """The refusal of a statement that reads too much."""
        return (
            f"the query reads more than {size(self.table_bytes)} of the store ({table}); narrow it down with "
            f"WHERE run = … AND step BETWEEN … AND …, name fewer columns, or raise the limit: {SWITCH}"
        )

    def too_large_result(self) -> str:
        """The refusal of a statement that returns too much."""
        return (
            f"the result is larger than {size(self.result_bytes)}; aggregate, add a LIMIT, or raise the limit: {SWITCH}"
        )

    def too_slow(self) -> str:
        """The refusal of a statement that takes too long."""
        return f"the query took longer than {self.seconds:g} s and was stopped; narrow it down"


def size(count: int) -> str:
    """Bytes as people read them.

    >>> size(3 << 29), size(128 << 20)
    ('1.5 GiB', '128 MiB')
    """
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / MIB:.3g} MiB"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a worker is started with. Memory in bytes."""

    raw: str
    duckdb_memory: int
    memory: int
    threads: int
    rows: int | None
    result_bytes: int
    too_large: str
    too_much_memory: str

    def argument(self) -> str:
        """As it is passed on."""
        return json.dumps(asdict(self))
