"""Real S3 servers, each a process that may be killed and started again: rclone's, and SeaweedFS."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY, SECRET = "test-key", "test-secret-key"
BUCKET = "tokens"
SECONDS = 60.0


def free_port() -> int:
    """A port that no one listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def environment(port: int, **others: str) -> dict[str, str]:
    """How obstore finds a server on this machine."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        **others,
    }


def program(name: str) -> str:
    """Path of a program that a package of the environment brings. Fail the test if it is missing."""
    packages = [Path(path) for path in sys.path if path.endswith("-packages")]
    folders = [*(path / "bin" for path in packages), *(path.parents[2] / "bin" for path in packages)]
    found = shutil.which(name, path=":".join(map(str, folders)))
    if found is None:
        pytest.fail(f"{name} is not installed; run `make dev`")
    return found


@dataclass
class Server:
    """A server of one folder.

    Attributes:
        folder: where it keeps everything.
        port: where it listens.
        kind: "rclone" or "weed".
    """

    folder: Path
    port: int
    kind: str = "rclone"
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        command = self._rclone() if self.kind == "rclone" else self._weed()
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "RCLONE_CONFIG": "/dev/null"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            assert self.process.poll() is None, (self.folder / "server.log").read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        raise AssertionError(f"{self.kind} does not listen")

    def _rclone(self) -> list[str]:
        (self.folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        served = str(self.folder / "data")
        return [
            *(program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{self.port}"),
            *("--auth-key", f"{KEY},{SECRET}", served),
        ]

    def _weed(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        user = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        (self.folder / "s3.json").write_text(json.dumps({"identities": [{**user, "actions": actions}]}))
        ports = [f"-{part}.port={free_port()}" for part in ("master", "volume", "filer")]
        return [
            *(program("weed"), "server", f"-dir={data}", "-s3", f"-s3.port={self.port}", "-ip=127.0.0.1"),
            *(f"-s3.config={self.folder / 's3.json'}", "-volume.max=20", "-master.volumeSizeLimitMB=100", *ports),
        ]

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def make_bucket(self) -> None:
        """Make the bucket where the server does not take a folder for one."""
        if self.kind == "rclone":
            return
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if _made(self.port):
                return
            time.sleep(0.5)
        raise AssertionError("no bucket")


def _made(port: int) -> bool:
    """Whether the bucket is there; obstore makes none, so the request is signed by rclone."""
    remote = f":s3,provider=Other,access_key_id={KEY},secret_access_key={SECRET},endpoint='http://127.0.0.1:{port}'"
    done = subprocess.run(
        [program("rclone"), "mkdir", "--retries=1", "--low-level-retries=1", "--timeout=5s", f"{remote}:{BUCKET}"],
        env={**os.environ, "RCLONE_CONFIG": "/dev/null"},
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode == 0


@contextmanager
def serving(folder: Path, kind: str = "rclone") -> Iterator[Server]:
    """A running server with a bucket."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder, free_port(), kind).start()
    try:
        server.make_bucket()
        yield server
    finally:
        server.kill()
