"""The shim itself: what it fails, delays, counts and leaves alone, in a real process."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

from faultfs.faultfs import FaultyDisk

PROGRAM = """
import json, os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])

def tried(action):
    try:
        action()
        return None
    except OSError as error:
        return error.errno

def fsynced(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

(folder / "file").write_bytes(b"content")
started = time.monotonic()
seen = {"fsync": [tried(lambda: fsynced(folder / "file")) for _ in range(4)], "seconds": time.monotonic() - started}
seen["directory"] = [tried(lambda: fsynced(folder)) for _ in range(3)]
seen["read"] = tried((folder / "file").read_bytes)
seen["rename"] = tried(lambda: (folder / "file").rename(folder / "renamed"))
seen["list"] = tried(lambda: list(os.scandir(folder)))
seen["mkdir"] = tried((folder / "new").mkdir)
print(json.dumps(seen))
"""


def test_rules_fail_delay_count_and_leave_alone(tmp_path: Path):
    disk = FaultyDisk(tmp_path / "faults")
    folder = tmp_path / "folder"
    folder.mkdir()
    slow = disk.rule("fsync", within=folder, only="files", delay=0.05)
    failing = disk.rule("fsync", within=folder, only="directories", error=errno.EIO, times=2)
    disk.rule("read", within="folder/file", error=errno.ESTALE)
    disk.rule("rename", within="renamed", error=errno.EIO)
    disk.rule("list", within=folder, error=errno.EMFILE)
    disk.rule("mkdir", within=tmp_path / "elsewhere", error=errno.EPERM)
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, env=disk.environment(), capture_output=True, text=True, check=True, timeout=60)
    seen = json.loads(done.stdout)
    assert seen["fsync"] == [None] * 4
    assert seen["seconds"] >= 4 * 0.05
    assert slow.injected == 4
    assert seen["directory"] == [errno.EIO, errno.EIO, None]
    assert failing.injected == 2
    assert [seen[name] for name in ("read", "rename", "list", "mkdir")] == [errno.ESTALE, errno.EIO, errno.EMFILE, None]
