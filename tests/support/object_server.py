"""Real object stores for tests: rclone's S3 server, and emulators of Azure and Google. Each can be killed and started again."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.managers import BaseManager, NamespaceProxy
from pathlib import Path
from typing import ClassVar

import pytest
from pyarrow import fs
from relay_processes import Proxy

from logprobe.monitor.store.raw_ownership import MARK

BUCKET = "tokens"
KINDS = os.environ.get("OBJECT_STORES", "s3").split(",")  # `make test-objects` names others
KEY, SECRET = "test-key", "test-secret-key"
# The emulator answers one connection at a time, and Google's library opens several.
_THREADED = (
    "from http import server; server.HTTPServer = server.ThreadingHTTPServer; "
    "from gcp_storage_emulator.__main__ import main; main()"
)
_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 60.0
_ATTEMPTS = 5


class ObjectServer(ABC):
    """Serves `folder`; `endpoint` is the address of the proxy before it, which counts bytes. `place`: the bucket, as messages name it."""

    place: str
    nowhere: ClassVar[str]  # an address in a bucket that does not exist
    most_read: ClassVar[float] = 0.5  # of two files, for a step of six
    ends: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.proxy = self._proxy()
        self.endpoint = f"http://127.0.0.1:{self.proxy.port}"
        self.url = f"{self.place}/home"

    def _proxy(self) -> Proxy:
        return Proxy(0)

    @abstractmethod
    def _command(self, port: int) -> tuple[list[str | Path], dict[str, str]]:
        """The server and its environment."""

    @abstractmethod
    def credentials(self, patch: pytest.MonkeyPatch, *, wrong: bool = False) -> None:
        """Sets those of this process."""

    @abstractmethod
    def objects(self) -> list[str]:
        """Names of everything in the bucket but marks of stores."""

    @abstractmethod
    def make_bucket(self) -> None:
        """Called once, when it answers."""

    def hide_bucket(self) -> None:
        """Takes the bucket away."""
        (self.folder / BUCKET).rename(self.folder / "elsewhere")

    def show_bucket(self) -> bool:
        """Puts it back, where that is possible."""
        (self.folder / "elsewhere").rename(self.folder / BUCKET)
        return True

    def start(self) -> None:
        """Returns when it answers."""
        assert any(self._started() for _ in range(_ATTEMPTS)), f"{type(self).__name__} does not answer"

    def _started(self) -> bool:
        """Whether it answers at a port that was free a moment ago: another process may have been faster."""
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        command, environment = self._command(port)
        assert shutil.which(command[0]), f"{command[0]} is missing; run: make test-objects"
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
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
            self.proxy.cut()
            self._process.send_signal(self.ends)
            self._process.wait()
        self.proxy.cut()

    def stop(self) -> None:
        """For good."""
        self.kill()
        self.proxy.close()

    def settings(self, home: Path, **more: object) -> None:
        """Writes the home's `storage` settings: everything moves at once."""
        given = {"raw": self.url, "endpoint": self.endpoint, "region": "us-east-1", "after": 0, **more}
        (home / "logprobe.yaml").write_text(
            "storage:\n" + "".join(f"  {name}: {value}\n" for name, value in given.items())
        )


class S3Server(ObjectServer):
    """rclone's, over a folder."""

    place = f"s3://{BUCKET}"
    nowhere = "s3://nowhere/home"

    def _command(self, port: int) -> tuple[list[str | Path], dict[str, str]]:
        program = Path(sys.executable).parent / "rclone"
        served = [*("serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"), self.folder]
        return [program, *served], {"RCLONE_CONFIG": os.devnull}

    def credentials(self, patch: pytest.MonkeyPatch, *, wrong: bool = False) -> None:
        patch.setenv("AWS_ACCESS_KEY_ID", "another" if wrong else KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another" if wrong else SECRET)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def make_bucket(self) -> None:
        (self.folder / BUCKET).mkdir()

    def objects(self) -> list[str]:
        root = self.folder / BUCKET
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != MARK)


class AzureServer(ObjectServer):
    """Azurite. Killed at once, it forgets what it has acknowledged: it is asked to end."""

    place = f"abfs://{BUCKET}@account.dfs.core.windows.net"
    nowhere = "abfs://nowhere@account.dfs.core.windows.net/home"
    ends = signal.SIGTERM
    _key = base64.b64encode(SECRET.encode()).decode()

    def _command(self, port: int) -> tuple[list[str | Path], dict[str, str]]:
        program = _ROOT / "tests" / "objects" / "node_modules" / ".bin" / "azurite-blob"
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", self.folder]
        return [program, *options, "--skipApiVersionCheck", "--silent"], {"AZURITE_ACCOUNTS": f"account:{self._key}"}

    def credentials(self, patch: pytest.MonkeyPatch, *, wrong: bool = False) -> None:
        patch.setenv("AZURE_STORAGE_KEY", base64.b64encode(b"another").decode() if wrong else self._key)

    def _files(self) -> fs.FileSystem:
        at = f"127.0.0.1:{self.proxy.target}"
        return fs.AzureFileSystem(
            "account",
            account_key=self._key,
            blob_storage_authority=at,
            dfs_storage_authority=at,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )

    def make_bucket(self) -> None:
        self._files().create_dir(BUCKET)

    def hide_bucket(self) -> None:
        self._files().delete_dir(BUCKET)

    def show_bucket(self) -> bool:
        return False

    def objects(self) -> list[str]:
        """Folders too, where nothing is in them: they are objects."""
        found = self._files().get_file_info(fs.FileSelector(BUCKET, recursive=True))
        names = [each.path for each in found if not each.path.endswith(MARK)]
        return sorted(
            name.removeprefix(f"{BUCKET}/") for name in names if not any(n.startswith(f"{name}/") for n in names)
        )


class _Remote(NamespaceProxy):
    """A `Proxy` in another process."""

    _exposed_ = ("__getattribute__", "__setattr__", "cut", "close")

    def cut(self) -> None:
        self._callmethod("cut")

    def close(self) -> None:
        self._callmethod("close")


class _Manager(BaseManager):
    """Its process."""


_Manager.register("Proxy", Proxy, _Remote)


class GoogleServer(ObjectServer):
    """gcp-storage-emulator. It asks for no credentials: a wrong one is one that gets no token to show."""

    place = f"gs://anonymous@{BUCKET}"
    nowhere = "gs://anonymous@nowhere/home"
    most_read = (
        2.5  # Arrow begins to read the whole of a file when it opens it; what is on its way then depends on the network
    )

    def _command(self, port: int) -> tuple[list[str | Path], dict[str, str]]:
        program = [sys.executable, "-c", _THREADED]
        options = ["start", "--host", "127.0.0.1", "--port", str(port), "--default-bucket", BUCKET, "--quiet"]
        return [*program, "--data-dir", self.folder, *options], {}

    def credentials(self, patch: pytest.MonkeyPatch, *, wrong: bool = False) -> None:
        user = {"type": "authorized_user", "client_id": "x", "client_secret": "x", "refresh_token": "x"}
        file = self.folder.parent / "credentials.json"
        file.write_text(json.dumps(user | {"token_uri": f"{self.endpoint}/no-tokens-here"} if wrong else user))
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        self.url = f"gs://{BUCKET}/home" if wrong else f"gs://anonymous@{BUCKET}/home"

    def _proxy(self) -> Proxy:
        """In a process of its own: Arrow waits for the first byte of a file at Google while no other thread of ours can run."""
        self._manager = _Manager()
        self._manager.start()
        return self._manager.Proxy(0)  # type: ignore[attr-defined, no-any-return]

    def stop(self) -> None:
        super().stop()
        self._manager.shutdown()

    def make_bucket(self) -> None:
        """It is there: the command names it."""

    def _root(self) -> Path:
        return self.folder / ".cloudstorage" / BUCKET

    def hide_bucket(self) -> None:
        self._root().rename(self.folder / "elsewhere")

    def show_bucket(self) -> bool:
        (self.folder / "elsewhere").rename(self._root())
        return True

    def objects(self) -> list[str]:
        root = self._root()
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != MARK)


_SERVERS: dict[str, type[ObjectServer]] = {"s3": S3Server, "azure": AzureServer, "google": GoogleServer}


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str = "s3") -> Iterator[ObjectServer]:
    """A running server, with its credentials in the environment."""
    server = _SERVERS[kind](folder)
    server.credentials(monkeypatch)
    server.start()
    try:
        server.make_bucket()
        yield server
    finally:
        server.stop()
