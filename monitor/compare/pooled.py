"""Something of each of many runs, in their order: of those in files by the workers of a pool, of others by the caller.

A run in files is ingested where it is read. A home has one reader, on its machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare.places import in_files
from logprobe.monitor.parallel.pool import Pool

Result = TypeVar("Result")


def of_each(
    names: Iterable[str], pool: Pool, from_files: Callable[[str], Result], elsewhere: Callable[[str], Result]
) -> Iterator[Result]:
    """What one of two functions makes of each run.

    Args:
        names: as `Places.find` takes them.
        pool: whose workers open runs in files, each once.
        from_files: of the absolute path of a run in files; a function of a module.
        elsewhere: of the name of any other run.

    Raises what the functions raise.
    """
    names = list(names)
    paths = {name: str(Path(name).absolute()) for name in names if in_files(name)}
    made = pool.map(from_files, paths.values())
    results: dict[str, Result] = {}
    for name in names:
        if name in paths and name not in results:
            results[name] = next(made)
        yield results[name] if name in results else elsewhere(name)


def require_here(path: str) -> None:
    """Raises `ConfigurationError` on a machine that does not have the run in files that the caller has."""
    if not in_files(path):
        raise ConfigurationError(
            f"{socket.gethostname()} cannot read {path}: every node needs it at the same path (docs/scaling.md)"
        )
