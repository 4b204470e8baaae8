"""Ports for servers whose place must be known before they run, or that come back to it."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below those that the system hands out by itself: nobody gets such a port by asking for any, and no connection starts from one. A client
# that keeps on trying to reach a port of the system's range while its server is away may connect to itself, and then holds the port.
_PLACES = range(15_000, 30_000)


def quiet_port() -> int:
    """A free port of 127.0.0.1 that nobody is given by chance."""
    for port in random.SystemRandom().sample(_PLACES, 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port among a hundred")
