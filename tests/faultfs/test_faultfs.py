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

def fsynced(path, flags=os.O_RDONLY):
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

(folder / "file").write_bytes(b"content")
started = time.monotonic()
seen = {"fsync": [tried(lambda: fsynced(folder / "file")) for _ in range(4)], "seconds": time.monotonic() - started}
seen["directory"] = [tried(lambda: fsynced(folder)) for _ in range(3)]
seen["read"] = [tried((folder / "file").read_bytes) for _ in range(40)]
(folder / "new").touch()
seen["rename"] = tried(lambda: (folder / "new").rename(folder / "renamed"))
seen["renamed"] = (folder / "renamed").exists()
seen["stat"] = tried((folder / "unseen").stat)
seen["list"] = tried(lambda: list(os.scandir(folder)))
seen["unlink"] = tried((folder / "file").unlink)
print(json.dumps(seen))
"""


def test_rules_fail_delay_count_and_leave_alone(tmp_path: Path):
    disk = FaultyDisk(tmp_path / "faults")
    folder = tmp_path / "folder"
    folder.mkdir()
    slow = disk.rule("fsync", within=folder, only="files", delay=0.05)
    failing = disk.rule("fsync", within=folder, only="directories", error=errno.EIO, skip=1, times=1)
    reads = disk.rule("read", within="folder/file", error=errno.ESTALE, chance=0.5, seed=7)
    renamed = disk.rule("rename", within="renamed", error=errno.EIO, done=True)
    disk.rule("stat", within="unseen", error=errno.EACCES)
    disk.rule("list", within=folder, error=errno.EMFILE)
    disk.rule("unlink", within=tmp_path / "elsewhere", error=errno.EPERM)
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, env=disk.environment(), capture_output=True, text=True, check=True, timeout=60)
    seen = json.loads(done.stdout)
    assert seen["fsync"] == [None] * 4
    assert seen["seconds"] >= 4 * 0.05
    assert slow.injected == 4
    assert seen["directory"] == [None, errno.EIO, None]
    assert (failing.calls, failing.injected) == (3, 1)
    assert set(seen["read"]) == {None, errno.ESTALE}
    assert seen["read"].count(errno.ESTALE) == reads.injected > 0
    assert (seen["rename"], seen["renamed"], renamed.injected) == (errno.EIO, True, 1)
    assert (seen["stat"], seen["list"], seen["unlink"]) == (errno.EACCES, errno.EMFILE, None)
