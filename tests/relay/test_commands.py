"""`logprobe certificate`, `relay-token`, `relay` and `up --relay-port`, as people type them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from network import waiting
from processes import eventually, logprobe, record

from logprobe.collectors.relay.arguments import rate
from logprobe.monitor.home import Home


def test_from_nothing_to_a_drained_node_as_the_documentation_says(tmp_path: Path) -> None:
    home, node = tmp_path / "home", tmp_path / "node"
    missing = logprobe("up", "--no-app", "--relay-port", "0", "--home", home, code=1)
    assert "make one: logprobe certificate" in missing.stderr
    ca = Path(logprobe("certificate", "--host", "localhost", "--home", home).stdout.strip())
    assert b"BEGIN CERTIFICATE" in ca.read_bytes()
    assert (ca.parent / "server.key").stat().st_mode & 0o777 == 0o600
    assert ca.parent.stat().st_mode & 0o777 == 0o700
    key = tmp_path / "token"
    key.write_text(logprobe("relay-token", "team-a", "--run", "team-a-*", "--home", home).stdout)
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--no-app", "--home", str(home)]
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen([*command, "--relay-address", "127.0.0.1", "--relay-port", "0"], stderr=log)
    try:
        eventually(lambda: Home(home).owner(), "the service runs")
        port = eventually(lambda: _port(up), "the receiver listens")
        record(node, "team-a-1")
        record(node, "team-b-1")
        send = ["relay", "--drain", "--home", node, "--ca", ca, "--token", key, "--to", f"grpc+tls://localhost:{port}"]
        key.chmod(0o600)
        with subprocess.Popen([sys.executable, "-m", "logprobe.app.cli", *map(str, send)]) as sending:
            eventually(lambda: _runs(node) == {"team-b-1"}, "the team's own run is sent")
            with pytest.raises(subprocess.TimeoutExpired):  # the other team's stays, and is what keeps it from its end
                sending.wait(3)
            sending.kill()
        assert _runs(node) == {"team-b-1"}
        assert "receiving from relays at grpc+tls://127.0.0.1:" in (tmp_path / "up.log").read_text()
        looked_at = logprobe("relay-token", "team-a", "--home", home)
        assert "--rotate makes another" in looked_at.stderr
        assert "team-a." not in looked_at.stdout, "looking makes no token"
        logprobe("relay-token", "team-a", "--run", "team-*", "--home", home)
        both = json.loads(logprobe("relay-token", "--json", "--home", home).stdout)
        assert [(row["name"], row["runs"], row["tokens"]) for row in both] == [("team-a", "team-*", 2)]
        logprobe("relay-token", "team-a", "--rotate", "--home", home)
        (row,) = json.loads(logprobe("relay-token", "team-a", "--json", "--home", home).stdout)
        assert (row["runs"], row["tokens"]) == ("team-*", 3)
        logprobe(*send)
        assert not waiting(node)
        logprobe("relay-token", "team-a", "--revoke", "--home", home)
        assert "no tokens" in logprobe("relay-token", "--home", home).stdout
        busy = logprobe("relay", "--drain", "--home", home, "--token", key, "--to", "grpc+tls://x:1", code=1)
        assert "belongs to a running service" in busy.stderr
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(120)


def test_what_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    said = {
        ("certificate", "--home", home): "--host NAME",
        ("relay-token", "a/b", "--run", "x", "--home", home): "not a valid name",
        ("relay-token", "a", "--home", home): "--run PATTERN",
        ("relay-token", "a", "--revoke", "--home", home): "no token of 'a'",
        ("relay", "--home", home): "no service",
        ("relay", "--home", home, "--to", "grpc+tls://h:1"): "--token FILE",
        ("relay", "--home", home, "--to", "grpc://h:1", "--token", "t"): "without TLS nothing is sent",
        ("relay", "--home", home, "--to", "grpc+tls://h", "--token", "t"): "not an address",
    }
    for arguments, words in said.items():
        assert words in logprobe(*arguments, code=1).stderr, arguments
    assert rate("1.5MB/s") == 1.5e6


def test_a_spool_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    node, key, log = tmp_path / "node", tmp_path / "token", tmp_path / "log"
    node.mkdir()
    (node / "spool").write_text("not a folder")
    key.write_text("0" * 64)
    key.chmod(0o600)
    send = ["relay", "--drain", "--home", node, "--token", key, "--to", "grpc+tls://localhost:1"]
    with (
        log.open("wb") as errors,
        subprocess.Popen([sys.executable, "-m", "logprobe.app.cli", *map(str, send)], stderr=errors) as sending,
    ):
        eventually(lambda: "the spool cannot be read" in log.read_text(), "the relay says so")
        with pytest.raises(subprocess.TimeoutExpired):  # and waits until it can be read
            sending.wait(3)
        sending.send_signal(signal.SIGINT)
    assert sending.returncode == 1
    assert "what is there was not sent" in log.read_text()


def _runs(node: Path) -> set[str]:
    """Of what has not been sent."""
    return {path.parent.parent.name for path in waiting(node)}


def _port(up: subprocess.Popen[bytes]) -> int | None:
    """Where the receiver that `up` has started listens; its first word of it is heard by nobody."""
    for child in psutil.Process(up.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "logprobe.app.processes.receiver" in child.cmdline():
                listening = [at for at in child.net_connections("tcp") if at.status == psutil.CONN_LISTEN]
                return listening[0].laddr.port if listening else None
    return None
