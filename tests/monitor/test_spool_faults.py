"""A spool that cannot be read for a while, and one into which somebody puts what is no segment: a real service, faults of a real disk."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faultfs.faultfs import FaultyDisk
from operator_homes import health
from processes import connected, end, eventually, logprobe
from segments import records, trained

from logprobe.collectors.spool.segments import SpoolWriter, spool_dir
from logprobe.monitor.reader import FlightReader

PATIENCE = 4.0  # seconds, of /healthz; a service has minutes
SERVICE = f"""
import sys
from logprobe.monitor.live import quarantine_actions
from logprobe.monitor.home import Home
from logprobe.monitor.service.service import Service
Service(Home(sys.argv[1]), patience={PATIENCE}, parts=[quarantine_actions.part]).run()
"""


class Served(NamedTuple):
    """A service on a faulty disk."""

    home: Path
    disk: FaultyDisk
    reader: FlightReader
    pid: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all tests of this module: each has runs of its own."""
    folder = tmp_path_factory.mktemp("faults")
    home, disk = folder / "home", FaultyDisk(folder / "rules")
    command = [sys.executable, "-c", SERVICE, str(home)]
    process = subprocess.Popen(command, env=disk.environment(), stderr=subprocess.PIPE)
    try:
        with connected(home) as reader:
            yield Served(home, disk, reader, process.pid)
    finally:
        end(process)


def write(home: Path, run: str, sample: str = "a") -> Path:
    return SpoolWriter(home, run, "w").write("training", records("training", trained(sample))).path


def ingested(served: Served, run: str) -> int:
    sql = "SELECT count(*) AS n FROM training_sequences WHERE run = ?"
    return int(served.reader.query(sql, [run])["n"][0].as_py())


def quarantined(served: Served) -> list[dict[str, Any]]:
    return served.reader.read("quarantine_list", run=None).to_pylist()


def stuck(served: Served) -> dict[str | None, dict[str, Any]]:
    return {each["run"]: each for each in served.reader.status()["stuck"]["files"]}


READING = {  # one run each
    f"{number}-{kind}": (kind, getattr(errno, number))
    for number, kind in (("EIO", "open"), ("EMFILE", "open"), ("EACCES", "open"), ("ESTALE", "read"), ("EIO", "list"))
}


def test_what_cannot_be_read_waits_shows_and_is_read_when_it_can_be(served: Served) -> None:
    rules = [served.disk.rule(kind, within=f"spool/{run}/w", error=number) for run, (kind, number) in READING.items()]
    paths = {run: write(served.home, run) for run in READING}
    write(served.home, "unconcerned")
    eventually(lambda: ingested(served, "unconcerned"), "a run without trouble is ingested beside those with")
    held = eventually(lambda: (found := stuck(served)).keys() >= READING.keys() and found, "all of them show")
    for run, (_, number) in READING.items():
        assert errno.errorcode[number] in held[run]["error"]
        assert str(paths[run]).startswith(held[run]["path"])
    eventually(lambda: stuck(served)["ESTALE-read"]["attempts"] > 2, "they are tried again")
    eventually(lambda: _says_that_files_wait(health(served.home)), "/healthz says so, and that the job itself is well")
    listed = json.loads(logprobe("store", "quarantine", "--json", "--home", served.home).stdout)
    assert {each["run"] for each in listed["stuck"]} == READING.keys()
    assert quarantined(served) == []
    for rule in rules:
        assert rule.injected > 0
        rule.stop()
    for run in READING:
        eventually(lambda run=run: ingested(served, run) == 1, f"{run} is ingested once it can be read")
    assert quarantined(served) == []
    assert eventually(lambda: (found := health(served.home))[0] == 200 and found, "well again")[1]["healthy"]


def _says_that_files_wait(answer: tuple[int, dict[str, Any]]) -> bool:
    """All that cannot be read; the health job, which sees how old they are, runs every few seconds."""
    status, document = answer
    ingest = document["ingest"]
    shown = ingest["stuck_files"] == len(READING) and (ingest["lag_seconds"] or 0) > PATIENCE / 2
    return status == 503 and shown and document["jobs"]["ingest"]["healthy"]


def _says_that_ingest_hangs(answer: tuple[int, dict[str, Any]]) -> bool:
    status, document = answer
    return status == 503 and not document["jobs"]["ingest"]["healthy"] and document["jobs"]["health"]["healthy"]


def hostile_spool(home: Path) -> dict[str, Path]:
    """One of each kind of file that is no segment, most of them with a segment's name."""
    spool, folder = os.fsencode(spool_dir(home)), spool_dir(home) / "hostile" / "w"
    folder.mkdir(parents=True)
    kinds = ("fifo", "zero", "sparse", "folder", "device", "socket", "loop")
    names = {name: folder / f"{number:08d}.training.00000000.arrow" for number, name in enumerate(kinds, 1)}
    os.mkfifo(names["fifo"])
    names["zero"].symlink_to("/dev/zero")
    with names["sparse"].open("wb") as file:
        file.truncate(6 << 30)
    names["folder"].mkdir()
    (names["folder"] / "inside").write_text("x")
    os.mknod(names["device"], stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(folder)  # a socket's path may have 107 bytes
        listening.bind(names["socket"].name)
    names["loop"].symlink_to(names["loop"].name)
    names["not utf-8"] = Path(os.fsdecode(spool + b"/hostile/w/\xff\xfe.arrow"))
    names["long name"], names["control characters"] = folder / ("x" * 250), folder / "\x1b[31m\n.arrow"
    for name in ("not utf-8", "long name", "control characters"):
        names[name].write_bytes(b"x")
    names["run not utf-8"] = Path(os.fsdecode(spool + b"/run\xff"))
    names["writer not utf-8"] = Path(os.fsdecode(spool + b"/hostile/writer\xff"))
    for name in ("run not utf-8", "writer not utf-8"):
        names[name].mkdir()
    (names["writer not utf-8"] / "00000001.training.00000000.arrow").write_bytes(b"x")
    return names


def memory_peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) << 10


def test_a_hostile_spool_stops_nobody_and_costs_no_memory(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(served.home.parent)  # and back again, after `hostile_spool`
    before = memory_peak(served.pid)
    names = hostile_spool(served.home)
    write(served.home, "ordinary")
    eventually(lambda: ingested(served, "ordinary"), "an ordinary run is ingested")
    found = eventually(lambda: len(rows := quarantined(served)) == len(names) and rows, "all are quarantined")
    # A row is written before its file is moved.
    eventually(lambda: not any(map(os.path.lexists, names.values())), "all are moved")
    assert memory_peak(served.pid) - before < 256 << 20
    assert {row["reason"] for row in found} == {"foreign", "too_large"}
    said = " ".join(row["message"] for row in found)
    for words in (
        "FIFO",
        "symbolic link",
        "character device",
        "socket",
        "directory",
        "6,442,450,944 bytes",
        "not UTF-8",
    ):
        assert words in said
    assert all(os.path.lexists(served.home / row["path"]) for row in found)
    eventually(lambda: health(served.home)[1]["jobs"]["ingest"]["healthy"], "ingest is well")
    assert served.reader.status()["jobs"]["ingest"]["failures"] == 0
    listed = logprobe("store", "quarantine", "--home", served.home).stdout
    assert "\x1b" not in listed
    dropped = json.loads(logprobe("store", "quarantine", "--drop", "--all", "--json", "--home", served.home).stdout)
    assert {each["status"] for each in dropped} == {"dropped"}
    assert quarantined(served) == []
    assert [path for path in (served.home / "quarantine").rglob("*") if not path.is_dir()] == []


def test_a_hang_shows_in_healthz(served: Served) -> None:
    slow = served.disk.rule("read", within="spool/hanging/w", delay=PATIENCE * 2.5, times=1)
    write(served.home, "hanging")
    eventually(lambda: _says_that_ingest_hangs(health(served.home)), "503 while ingest hangs, and other jobs are well")
    eventually(lambda: ingested(served, "hanging"), "it goes on")
    assert slow.injected == 1
    eventually(lambda: health(served.home)[0] == 200, "and is well again")
