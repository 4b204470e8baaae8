"""A service that receives, relays that send, and a bad network between them, as real processes and sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from logprobe.monitor.home import Home
from logprobe.monitor.relay import certificate, tokens
from logprobe.monitor.relay.files import RelayFiles


def prepare(home: Path, *, writer: str = "team", runs: tuple[str, ...] = ("*",)) -> Path:
    """A certificate for this machine and a token; → the token's file."""
    place = RelayFiles.of(Home(home).create()).create()
    if not place.certificate.exists():
        certificate.make(place, ["localhost", "127.0.0.1"], 30, datetime.now(UTC))
    return token(home, writer, runs)


def token(home: Path, writer: str, runs: tuple[str, ...], *, overlap: timedelta = timedelta(hours=1)) -> Path:
    """A (further) token of a writer, in a file of its own."""
    place = RelayFiles.of(Home(home))
    writers, text = tokens.load(place.tokens).grant(writer, runs, datetime.now(UTC), overlap=overlap)
    tokens.save(place.tokens, writers)
    file = home.parent / f"{writer}-{len(writers.by_name[writer].secrets)}.token"
    file.write_text(text)
    file.chmod(0o600)
    return file


@dataclass
class Process:
    """One process that is started, killed and started again."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    began: int = 0  # where in the log what the running process says begins

    def start(self) -> Process:
        with self.log.open("ab") as log:
            self.began = log.tell()
            self.process = subprocess.Popen(
                self.command, env={**os.environ, **self.environment}, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @property
    def words(self) -> str:
        return self.log.read_text(errors="replace")


def receiver(home: Path) -> Process:
    """The process that receives; not started."""
    command = [sys.executable, "-m", "logprobe.app.processes.receiver", "--home", str(home)]
    return Process(command, {}, home.parent / "receiver.log")


def port_so_far(process: Process) -> int | None:
    """Where a started receiver listens; None: not yet."""
    for line in process.log.read_bytes()[process.began :].splitlines():
        with suppress(ValueError):
            return int(json.loads(line)["port"])
    return None


def port_of(process: Process, seconds: float = 120.0) -> int:
    """The same, once it does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        port = port_so_far(process)
        if port is not None:
            return port
        if process.process is not None and process.process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the receiver does not listen:\n{process.words}")


def relay(node: Path, port: int, service: Path, token_file: Path, *arguments: str, **environment: str) -> Process:
    """The relay of a node's home; not started."""
    command = [
        *(
            sys.executable,
            "-m",
            "logprobe.collectors.relay",
            "--home",
            str(node),
            "--to",
            f"grpc+tls://localhost:{port}",
        ),
        *("--ca", str(RelayFiles.of(Home(service)).authority), "--token", str(token_file), *arguments),
    ]
    return Process(command, environment, node.parent / f"{node.name}.log")


@contextmanager
def receiving(home: Path) -> Iterator[int]:
    """A receiver of `home`; yields its port."""
    process = receiver(home).start()
    try:
        yield port_of(process)
    finally:
        process.end()


def handshake(port: int, version: ssl.TLSVersion) -> str | None:
    """What is agreed on with a client that knows nothing newer than `version`; None: nothing."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, context.wrap_socket(plain) as secure:
            return secure.version()
    except (ssl.SSLError, ConnectionError):
        return None
