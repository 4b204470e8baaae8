"""Object stores, each a process that may be killed and started again: the S3 servers of rclone and SeaweedFS, and
Azurite, Microsoft's emulator of Azure, which the campaign of buckets installs."""

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
# Azurite knows one account, whose key its documentation prints.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE = "azurite"
AZURITE_PROGRAM = Path(__file__).resolve().parents[2] / ".artifacts/azurite/node_modules/azurite/dist/src/blob/main.js"
BUCKET = "tokens"
SECONDS = 60.0


def free_port() -> int:
    """A port that no one listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def address(kind: str = "rclone") -> str:
    """Address of the bucket of a server."""
    return f"{'az' if kind == AZURITE else 's3'}://{BUCKET}"


def endpoint(port: int, kind: str = "rclone") -> dict[str, str]:
    """Where obstore finds a server on this machine."""
    if kind == AZURITE:
        return {"AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}"}
    return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def credentials(kind: str = "rclone", secret: str | None = None) -> dict[str, str]:
    """Who obstore is to a server. `secret`: instead of the right one."""
    if kind == AZURITE:
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": secret or ACCOUNT_KEY}
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": secret or SECRET, "AWS_REGION": "us-east-1"}


def environment(port: int, kind: str = "rclone", **others: str) -> dict[str, str]:
    """Where obstore finds a server, and who it is to it."""
    return {**endpoint(port, kind), **credentials(kind), **others}


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
        kind: "rclone", "weed" or "azurite".
        metrics: where SeaweedFS counts requests.
    """

    folder: Path
    port: int
    kind: str = "rclone"
    process: subprocess.Popen[bytes] | None = None
    metrics: int = 0

    def start(self) -> Server:
        command = {"rclone": self._rclone, "weed": self._weed, AZURITE: self._azurite}[self.kind]()
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
        self.metrics = free_port()
        return [
            *(program("weed"), "server", f"-dir={data}", "-s3", f"-s3.port={self.port}", "-ip=127.0.0.1"),
            *(f"-s3.config={self.folder / 's3.json'}", "-volume.max=20", "-master.volumeSizeLimitMB=100", *ports),
            f"-metricsPort={self.metrics}",
        ]

    def _azurite(self) -> list[str]:
        node = shutil.which("node")
        if node is None or not AZURITE_PROGRAM.exists():
            pytest.fail("Azurite is not installed; run `make campaign NAME=bucket`")
        place = ("--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder / "data"))
        return [node, str(AZURITE_PROGRAM), *place, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]

    def kill(self) -> None:
        """End it without a word; Azurite with one, because it keeps its list of objects in memory for seconds."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM if self.kind == AZURITE else signal.SIGKILL)
            self.process.wait()

    def make_bucket(self) -> None:
        """Make the bucket where the server does not take a folder for one."""
        if self.kind == "rclone":
            return
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if _made(self.port, self.kind):
                return
            time.sleep(0.5)
        raise AssertionError("no bucket")


def _made(port: int, kind: str) -> bool:
    """Whether the bucket is there; obstore makes none, so the request is signed by rclone."""
    if kind == AZURITE:
        remote = f":azureblob,account={ACCOUNT},key='{ACCOUNT_KEY}',endpoint='http://127.0.0.1:{port}/{ACCOUNT}'"
    else:
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
