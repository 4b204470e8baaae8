"""A confined process tries everything a hostile statement could; each layer by itself keeps it from writing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, json, os, resource, socket, subprocess, sys
from pathlib import Path
from logprobe.monitor.free_sql import confinement

folder, outside, layer = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if layer == "both":
    held = confinement.confine(folder)
else:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.prctl(38, 1, 0, 0, 0)
    held = [layer] if (confinement._landlock(libc, folder, None) if layer == "landlock" else confinement._seccomp(libc)) else []

def reader(path):
    return lambda: path.read_text()

def fork():
    if os.fork() == 0:
        os._exit(0)

attempts = {
    "read inside": reader(folder / "a"),
    "list inside": lambda: os.listdir(folder),
    "read outside": reader(outside),
    "read by link": reader(folder / "link"),
    "list outside": lambda: os.listdir("/"),
    "overwrite": lambda: (folder / "a").write_text("x"),
    "append": lambda: open(folder / "a", "ab").close(),
    "truncate": lambda: os.truncate(folder / "a", 0),
    "create": lambda: (folder / "b").write_text("x"),
    "temporary": lambda: os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR)),
    "remove": lambda: os.unlink(folder / "a"),
    "rename": lambda: os.rename(folder / "a", folder / "b"),
    "link": lambda: os.link(folder / "a", folder / "b"),
    "symlink": lambda: os.symlink("a", folder / "b"),
    "folder": lambda: os.mkdir(folder / "b"),
    "fifo": lambda: os.mkfifo(folder / "b"),
    "mode": lambda: os.chmod(folder / "a", 0o777),
    "times": lambda: os.utime(folder / "a", (0, 0)),
    "attribute": lambda: os.setxattr(folder / "a", "user.x", b"x"),
    "internet": lambda: socket.socket(socket.AF_INET).connect(("127.0.0.1", 9)),
    "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "local": lambda: socket.socketpair(),
    "program": lambda: os.execv("/bin/true", ["true"]),
    "fork": fork,
    "signal": lambda: os.kill(os.getppid(), 0),
}
done = {}
for name, attempt in attempts.items():
    try:
        attempt()
        done[name] = "done"
    except OSError as error:
        done[name] = type(error).__name__
print(json.dumps([held, done]))
"""
READING = {"read inside", "list inside"}
# What Landlock has no word for: it changes no content, and seccomp refuses it.
BESIDE_FILES = {"mode", "times", "attribute", "datagram", "local", "program", "fork", "signal", "internet"}
OUTSIDE = {"read outside", "read by link", "list outside"}


def attempted(tmp_path: Path, layer: str) -> tuple[list[str], set[str]]:
    """Which layers hold, and what went through."""
    folder, outside = tmp_path / "raw", tmp_path / "secret"
    folder.mkdir()
    (folder / "a").write_text("kept")
    outside.write_text("secret")
    (folder / "link").symlink_to(outside)
    command = [sys.executable, "-c", PROGRAM, str(folder), str(outside), layer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    held, results = json.loads(done.stdout)
    assert (folder / "a").read_text() == "kept"
    assert {path.name for path in folder.iterdir()} == {"a", "link"}
    return held, {name for name, result in results.items() if result == "done"}


def test_both_layers_leave_reading_below_one_folder(tmp_path: Path) -> None:
    held, went_through = attempted(tmp_path, "both")
    assert held == ["landlock", "seccomp"]
    assert went_through == READING


@pytest.mark.parametrize(("layer", "left"), [("seccomp", OUTSIDE), ("landlock", BESIDE_FILES)])
def test_each_layer_alone_keeps_every_file_as_it_is(tmp_path: Path, layer: str, left: set[str]) -> None:
    held, went_through = attempted(tmp_path, layer)
    assert held == [layer]
    assert READING <= went_through <= READING | left
