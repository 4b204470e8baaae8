"""The connection to a Ray cluster. Ray is imported here alone, and only when asked for."""

from __future__ import annotations

import socket
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError, MissingExtraError

_KNOCK: Final = 10.0  # seconds for a connection


def connected(address: str) -> tuple[Any, bool]:
    """Ray, and whether the connection is ours to end. `address`: ``auto``, or as `ray.init` takes it.

    Raises `ConfigurationError` when there is no cluster, `MissingExtraError` without Ray.
    """
    try:
        import ray  # noqa: PLC0415 - optional, and heavy
    except ImportError as error:
        raise MissingExtraError("a Ray cluster needs the package 'ray'; pip install 'logprobe[ray]'") from error
    if ray.is_initialized():
        return ray, False
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        raise ConfigurationError(f"--ray {address}: {words(error)}") from error
    return ray, True


def _knock(address: str) -> None:
    """Raise `OSError` when nothing answers at HOST:PORT; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), _KNOCK).close()


def words(error: Exception) -> str:
    """Return the first line of an error of Ray's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0]}"[:300]
