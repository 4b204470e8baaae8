"""What is between two processes, and on either side of it."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from pathlib import Path


class Proxy:
    """A network to a server that can change what passes. `port`: where its clients connect to."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.changed: tuple[bytes, bytes] | None = None  # bytes that become others on their way to the server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError, ValueError):
            while True:
                ready, _, _ = select.select([client, server], [], [], 1.0)
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client and self.changed is not None:
                        data = data.replace(*self.changed)
                    (server if source is client else client).sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def waiting(node: Path) -> list[Path]:
    """Segments in a spool that others take files out of."""
    return list((node / "spool").rglob("[!.]*.arrow"))
