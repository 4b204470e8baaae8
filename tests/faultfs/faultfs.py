"""A disk that is slow or refuses, for real processes: calls of the C library are delayed and failed by a preloaded shim.

    disk = FaultyDisk(tmp_path / "faults")
    disk.rule("fsync", within=home, delay=0.1)
    failing = disk.rule("fsync", within=home, error=errno.EIO, only="directories", times=3)
    subprocess.Popen(command, env=disk.environment())
    failing.stop()
    assert failing.injected == 3

Rules live in a file that all processes map, so they can be made, changed and counted while these run. The first rule that
matches a call decides, as many times as it may.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal, get_args

Operation = Literal["fsync", "open", "read", "write", "rename", "list", "mkdir", "map"]
Only = Literal["anything", "files", "directories"]

SOURCE: Final = Path(__file__).with_name("shim.c")
_OPERATIONS: Final = {name: 1 << bit for bit, name in enumerate(get_args(Operation))}
_ONLY: Final = get_args(Only)
_RULES: Final = 16
# The layout of `Rule` in shim.c: active, operations, number, only; delay, times, injected; place.
_HEAD: Final = struct.Struct("=IIiI3Q216s")
_INJECTED_AT: Final = struct.calcsize("=IIiI2Q")
_EVER: Final = (1 << 64) - 1


@functools.cache
def library() -> Path:
    """The shim, compiled once per process of the tests; needs gcc."""
    folder = tempfile.mkdtemp(prefix="faultfs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", target, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return target


def preloaded(shim: Path) -> dict[str, str]:
    """Variables that load a library first: by its name, as a path would end at a blank in it."""
    return {
        "LD_PRELOAD": shim.name,
        "LD_LIBRARY_PATH": ":".join(filter(None, [str(shim.parent), os.environ.get("LD_LIBRARY_PATH")])),
    }


class Rule:
    """One rule of a disk; what it counts is that of all processes together."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at

    def stop(self) -> None:
        """From now on the rule does nothing; its count stays."""
        self._memory[self._at : self._at + 4] = struct.pack("=I", 0)

    def start(self) -> None:
        """The rule holds again."""
        self._memory[self._at : self._at + 4] = struct.pack("=I", 1)

    @property
    def injected(self) -> int:
        """Calls that it failed or delayed."""
        return int(struct.unpack_from("=Q", self._memory, self._at + _INJECTED_AT)[0])


class FaultyDisk:
    """Rules for the processes that are started with `environment`."""

    def __init__(self, control: Path) -> None:
        """`control`: the file of the rules; made here."""
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_bytes(bytes(_HEAD.size * _RULES))
        self._control = control
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._used = 0

    def rule(
        self,
        *operations: Operation,
        within: str | Path = "",
        error: int = 0,
        delay: float = 0.0,
        only: Only = "anything",
        times: int | None = None,
        active: bool = True,
    ) -> Rule:
        """Add a rule.

        Args:
            *operations: kinds of calls.
            within: a text that the path must contain: a folder, ".arrow", a kind of segment.
            error: the errno to fail with; 0: none.
            delay: seconds that the call takes longer.
            only: regular files or directories.
            times: at most so many calls are failed or delayed; None: all.
            active: whether it holds from now on, or from `Rule.start`.
        """
        at = self._used * _HEAD.size
        self._used += 1
        place = os.fsencode(within)
        assert self._used <= _RULES
        assert len(place) < 216, "the shim knows shorter places only"
        bits = sum(_OPERATIONS[name] for name in operations)
        limits = (int(delay * 1e6), _EVER if times is None else times, 0)
        rule = _HEAD.pack(0, bits, error, _ONLY.index(only), *limits, place)
        self._memory[at : at + _HEAD.size] = rule
        made = Rule(self._memory, at)
        if active:
            made.start()
        return made

    def environment(self, **more: str) -> dict[str, str]:
        """For a process that is to have this disk."""
        return {**os.environ, **preloaded(library()), "FAULTFS": str(self._control), **more}
