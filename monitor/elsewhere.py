"""Runs of other homes and services: a home's folder, or a service's endpoint ``grpc://HOST:PORT``. Read only.

A service on another machine listens there with `logprobe up --service-address --service-port`, and asks for its ``LOGPROBE_TOKEN``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.settings import TOKEN_VARIABLE
from logprobe.monitor.home import Home, ServiceInfo
from logprobe.monitor.reader import FlightReader, Reader, open_reader

ALSO_VARIABLE: Final = "LOGPROBE_ALSO"  # for the dashboard's process: JSON list of places
_SCHEME: Final = "grpc://"


@dataclass(frozen=True, slots=True)
class RemoteService:
    """A service of which only the address is known. `path`: its address, as messages name it."""

    path: str
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def __post_init__(self) -> None:
        parts = urlsplit(self.path)
        try:
            known = bool(parts.hostname and parts.port)
        except ValueError:
            known = False
        if not known or not self.path.startswith(_SCHEME) or parts.path or parts.username:
            raise ConfigurationError(f"{self.path!r} is not the address of a service; write {_SCHEME}HOST:PORT")

    def service_info(self) -> ServiceInfo:
        """Where it listens, and the token to show. Raises `ConfigurationError` without one."""
        token = self.environment.get(TOKEN_VARIABLE)
        if not token:
            raise ConfigurationError(f"{self.path} asks for a token: set {TOKEN_VARIABLE} to that of its service")
        parts = urlsplit(self.path)
        return ServiceInfo(host=str(parts.hostname), port=int(parts.port or 0), token=token, pid=0, started="")


def is_service(where: str) -> bool:
    """Whether a place is the address of a service, not a folder."""
    return "://" in where


def reader_at(where: str) -> Reader:
    """A reader of a place. Raises `ConfigurationError`, `StoreError` or `ServiceUnavailableError`."""
    return FlightReader(RemoteService(where)) if is_service(where) else open_reader(where)


def name_at(where: str, run: str) -> str:
    """What a run of another place is called, see `split`.

    >>> name_at("/data/b", "r"), name_at("grpc://host:7070", "r")
    ('/data/b:r', 'grpc://host:7070/r')
    """
    return f"{where}/{run}" if is_service(where) else f"{where}:{run}"


def split(name: str) -> tuple[str, str] | None:
    """Place and run of such a name; None: it names a run of the home at hand. Raises `ConfigurationError`.

    >>> split("grpc://host:7070/team/r"), split("r:1")
    (('grpc://host:7070', 'team/r'), None)
    """
    if name.startswith(_SCHEME):
        address, slash, run = name.removeprefix(_SCHEME).partition("/")
        if not slash or not run:
            raise ConfigurationError(f"{name!r} names no run; write {_SCHEME}HOST:PORT/RUN")
        return _SCHEME + address, run
    folder, colon, run = name.rpartition(":")
    return (folder, run) if colon and os.path.isdir(folder) else None  # noqa: PTH112 - "" is no folder


class Briefly:
    """A place that is opened for each read and closed again: an open store would keep its service from starting."""

    def __init__(self, where: str) -> None:
        """Opens nothing yet."""
        self._where = where

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """The rows of one stored query. Raises as `reader_at` and `Reader.read` do."""
        with reader_at(self._where) as reader:
            return reader.read(name, **params)


def checked(places: list[str], home: Home | None) -> list[str]:
    """Places as they were given, folders as absolute paths, each once and none of them `home`. Raises `ConfigurationError`."""
    found: dict[str, None] = {}
    for where in places:
        if is_service(where):
            found[RemoteService(where).path] = None
            continue
        other = Home(where)
        if not other.path.is_dir():
            raise ConfigurationError(f"{where} is not a folder; --also takes a home or {_SCHEME}HOST:PORT")
        if home is None or other.path != home.path:
            found[str(other.path)] = None
    return list(found)
