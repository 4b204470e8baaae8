"""Runs of other data directories on local or mounted disks, read only."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader, open_reader


def name_at(where: str, run: str) -> str:
    """Return the qualified name of a run in another data directory, see `split`.

    >>> name_at("/data/b", "r")
    '/data/b:r'
    """
    return f"{where}:{run}"


def split(name: str) -> tuple[str, str] | None:
    """Return data directory and run of a name from `name_at`, or None for the name of a local run.

    >>> split("r:1")
    """
    folder, colon, run = name.rpartition(":")
    return (folder, run) if colon and os.path.isdir(folder) else None  # noqa: PTH112 - "" is no folder


class Briefly:
    """Data directory that keeps open only the connection to its service. An open store would prevent the service's
    start.

    May be shared between threads.
    """

    def __init__(self, where: str) -> None:
        """Open nothing yet."""
        self._home = Home(where)
        self._service = FlightReader(self._home)

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of one stored query. Raises as `open_reader` and `Reader.read` do."""
        try:
            self._service.greet()  # one that hangs is not waited for as long as a statement may take
            return self._service.read(name, **params)
        except ServiceUnavailableError:
            if self._home.owner() is not None:
                raise
        with open_reader(self._home) as reader:
            return reader.read(name, **params)


def checked(places: list[str], home: Home) -> list[str]:
    """Return data directories as unique absolute paths without `home`. Raises `ConfigurationError`."""
    paths: dict[str, None] = {}
    for where in places:
        other = Home(where)
        if not other.path.is_dir():
            raise ConfigurationError(f"{where} is not a folder; pass a data directory to --also")
        if other.path != home.path:
            paths[str(other.path)] = None
    return list(paths)
