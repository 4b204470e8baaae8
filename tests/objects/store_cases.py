"""A recorded run served from the disk and from a real object store: the same digits everywhere, whatever is killed.

`make test-s3` on a real S3 server, `make test-objects` on emulators of Azure and Google.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import KINDS, ObjectServer, serving
from processes import connected, eventually, start_service
from recorded_home import ingest_recorded

from logprobe.app.cli import main
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.reader import open_reader

RUN, OTHER = "raw-growth", "v0-reference"
BEFORE = 60  # steps
QUESTIONS = (
    f"SELECT * EXCLUDE (computed_at) FROM steps WHERE run = '{RUN}' ORDER BY step",
    f"SELECT * FROM tokens WHERE run = '{RUN}' AND step BETWEEN 20 AND 24 ORDER BY step, sample_id, position",
    f"SELECT step, count(*), sum(log_ratio), max(abs(log_ratio)) FROM tokens WHERE run = '{RUN}' GROUP BY step ORDER BY step",
    f"SELECT sample_id, logprobs FROM raw_rollout WHERE run = '{RUN}' ORDER BY sample_id, segment_id, row LIMIT 500",
)
COMMANDS = (
    ["metrics", RUN, "--json"],
    ["compare", RUN, "--baseline", OTHER, "--json"],
    ["diagnose", RUN, "--json"],
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "home"
    ingest_recorded(folder, RUN, OTHER, before_step=BEFORE)
    return folder


@pytest.fixture(params=KINDS)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    with serving(tmp_path / "server", monkeypatch, request.param) as running:
        yield running


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGKILL) -> None:
    """Ends a service."""
    process.send_signal(how)
    process.communicate(timeout=60)


def seen(home: Path, capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, object]:
    """What people see of the runs."""
    with open_reader(home) as reader:
        found: dict[str, object] = {sql: reader.query(sql).to_pylist() for sql in QUESTIONS}
        for name in ("slice_worst_tokens", "peer_tokens"):
            more = {"count": 3} if name == "slice_worst_tokens" else {}
            found[name] = reader.read(name, run=RUN, first=10, last=20, **more).to_pylist()
        found["proof"] = reader.read("proof_sequences", run=RUN, most=50, step=None).to_pylist()
    for command in COMMANDS:
        capsys.readouterr()
        main([*command, "--home", str(home)])
        found[" ".join(command)] = capsys.readouterr().out.replace(str(home), "HOME")
    tokens = folder / "tokens.csv"
    assert main(["export", RUN, str(tokens), "--what", "tokens", "--home", str(home)]) == 0
    found["export"] = tokens.read_text(encoding="utf-8")
    return found


def moved(home: Path) -> bool:
    with connected(home) as reader:
        progress = reader.status()["jobs"]["object_store"]["progress"] or {}
        return bool(progress.get("stored_files")) and not progress["waiting_files"] and not progress["to_remove"]


def test_the_same_digits_from_both_places(recorded, server, tmp_path, capsys):
    local, remote = tmp_path / "local", tmp_path / "remote"
    shutil.copytree(recorded, local)
    shutil.copytree(recorded, remote)
    server.settings(remote)
    process = start_service(remote)
    try:
        eventually(lambda: moved(remote), "everything is in the object store", 300)
        eventually(lambda: not list(remote.glob("raw/[!!]*/*/*.parquet")), "no read needs the files any more")
    finally:
        end(process, signal.SIGTERM)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert seen(remote, capsys, tmp_path / "a") == seen(local, capsys, tmp_path / "b")


def test_server_and_service_killed_again_and_again_lose_nothing(recorded, server, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(recorded, home)
    server.settings(home)
    with open_reader(home) as reader:
        before = reader.query(QUESTIONS[2]).to_pylist()
    for number in range(6):
        server.proxy.cut_after = 30_000 * (number + 1)
        process = start_service(home)
        with connected(home):
            eventually(lambda: server.proxy.passed, "something is sent")
        server.proxy.passed = 0
        if number % 2:
            server.kill()
        end(process)
        if number % 2:
            server.start()
        server.proxy.cut()
    server.proxy.cut_after = None
    process = start_service(home)
    try:
        eventually(lambda: moved(home), "everything is in the object store", 300)
        with connected(home) as reader:
            assert reader.query(QUESTIONS[2]).to_pylist() == before
            stored = reader.query("SELECT location FROM raw_files ORDER BY location")["location"].to_pylist()
    finally:
        end(process)
    assert [f"{server.place}/{name}" for name in server.objects()] == stored


def test_a_server_that_goes_while_a_query_reads(recorded, server, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(recorded, home)
    server.settings(home)
    process = start_service(home)
    try:
        eventually(lambda: moved(home), "everything is in the object store", 300)
        with connected(home) as reader:
            server.proxy.cut_after = 200
            server.proxy.cut()
            with pytest.raises(
                LogprobeError, match=rf"^raw tokens in the object store cannot be read: {server.place} [^\n]*$"
            ):
                reader.read("export_tokens", run=RUN, step=30)
            assert reader.query(QUESTIONS[0]).num_rows == BEFORE, "what the store holds itself can be read"
            server.proxy.cut_after = None
            assert reader.read("export_tokens", run=RUN, step=30).num_rows > 0
    finally:
        end(process)
