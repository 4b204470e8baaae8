"""A bad network between two processes, and what is on either side of it."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


class Proxy:
    """A network to a server: cuts, delays and drops connections. `port`: where its clients connect to."""

    def __init__(self, target: int, *, seed: int = 0) -> None:
        self.target = target
        self.delay = 0.0  # seconds, of every piece
        self.cut_after: int | None = None  # bytes, of a connection
        self.open = True
        self.changed: tuple[bytes, bytes] | None = None  # bytes that become others on their way to the server
        self.passed = 0
        self._random = random.Random(seed)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.open:
                    client.close()
                    continue
                try:
                    pair = (client, socket.create_connection(("127.0.0.1", self.target), timeout=5))
                except OSError:
                    client.close()
                    continue
                self._pairs.append(pair)
                thread = threading.Thread(target=self._pump, args=pair, daemon=True)
                thread.start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        left = self.cut_after
        with suppress(OSError, ValueError):
            while True:
                ready, _, _ = select.select([client, server], [], [], 1.0)
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return self._drop(client, server)
                    if self.delay:
                        time.sleep(self.delay * self._random.random() * 2)
                    if source is client and self.changed is not None:
                        data = data.replace(*self.changed)
                    self.passed += len(data)  # before they are: whoever has got them finds them counted
                    (server if source is client else client).sendall(data)
                    left = None if left is None else left - len(data)
                    if left is not None and left < 0:
                        return self._drop(client, server)
        return self._drop(client, server)

    def _drop(self, *pair: socket.socket) -> None:
        for each in pair:
            with suppress(OSError):
                each.close()

    def cut(self) -> None:
        """Drops every connection there is."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


def stored(reader: Any, run: str) -> list[str]:
    """Sample ids in the store, each as often as it is there."""
    rows = reader.query("SELECT sample_id FROM training_sequences WHERE run = ? ORDER BY ALL", [run])
    return rows["sample_id"].to_pylist()


def waiting(node: Path) -> list[Path]:
    """Segments in a spool that others take files out of."""
    return list((node / "spool").rglob("[!.]*.arrow"))
