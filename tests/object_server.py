"""A real S3 server for tests: rclone's, over a folder. It can be killed and started again, and counts what it sends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from relay_processes import Proxy

BUCKET = "tokens"
KEY, SECRET = "test-key", "test-secret-key"
_SECONDS = 60.0
_ATTEMPTS = 5


class ObjectServer:
    """Serves `folder`; `endpoint` is the address of the proxy before it, which counts bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / BUCKET).mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.proxy = Proxy(0)
        self.endpoint = f"http://127.0.0.1:{self.proxy.port}"
        self.url = f"s3://{BUCKET}/home"

    def start(self) -> None:
        """Returns when it answers."""
        assert any(self._started() for _ in range(_ATTEMPTS)), "rclone does not answer"

    def _started(self) -> bool:
        """Whether it answers at a port that was free a moment ago: another process may have been faster."""
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        program = Path(sys.executable).parent / "rclone"
        self._process = subprocess.Popen(
            [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", self.folder],
            env={**os.environ, "RCLONE_CONFIG": os.devnull},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.proxy.target = port
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                return self._process.poll() is None
            time.sleep(0.05)
        return False

    def kill(self) -> None:
        """At once, with whatever is under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.proxy.cut()

    def objects(self) -> list[str]:
        """Names of the objects in the bucket."""
        root = self.folder / BUCKET
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def settings(self, home: Path, **more: object) -> None:
        """Writes the home's ``storage.yaml``: everything moves at once."""
        given = {"raw": self.url, "endpoint": self.endpoint, "region": "us-east-1", "after": 0, **more}
        (home / "storage.yaml").write_text("".join(f"{name}: {value}\n" for name, value in given.items()))


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A running server, with its credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ObjectServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        server.proxy.close()
