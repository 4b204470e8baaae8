"""The spool's writer on a disk that refuses, lies, is killed and loses power, while a service takes what it sees.

What was acknowledged is there afterwards, no rows are in two segments, and whatever has a segment's name is whole.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pyarrow as pa
import pytest
from simulated_disk import Kill, SimulatedDisk

from logprobe.collectors.spool.schema import STEP
from logprobe.collectors.spool.segments import SegmentPath, SpoolWriter, decoded_segment, is_temporary, run_dir

HOME = Path("/disk/home")
ACTIONS = ("write", "write", "write", "settle", "take", "fault", "calm", "kill", "power")
FAULTS = (errno.EIO, errno.ENOSPC, errno.ESTALE)


class World:
    """One recorder after the other, and a service, on one disk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(random.Random(seed + 1))
        self.writers = 0
        self.rows = 0
        self.acknowledged: set[int] = set()
        self.waiting: set[int] = set()  # of a segment that is not settled: its writer brings it to its end
        self.unwritten: list[int] = []  # refused, and so written again as another segment
        self.taken: dict[str, int] = {}  # by the id in a segment's content, as ingest counts them
        self.start()

    def start(self) -> None:
        """Another process, under a name that was never used."""
        self.writers += 1
        self.waiting, self.unwritten = set(), []
        self.disk.kill_in, self.disk.fault = None, lambda operation, path: None
        self.disk.durable_folders = set()
        self.writer = SpoolWriter(HOME, "run", f"w{self.writers}", disk=self.disk)

    def write(self) -> None:
        self.settle()  # as the recorder does: what a write that fails leaves open is then about its own rows
        if not self.writer.settled:
            return
        if self.unwritten:
            row = self.unwritten.pop()
        else:
            self.rows += 1
            row = self.rows
        try:
            self.writer.write("step", pa.Table.from_pylist([{"step": row}], schema=STEP))
        except OSError:
            if self.writer.settled:
                self.unwritten.append(row)
            else:
                self.waiting = {row}
        else:
            self.acknowledged.add(row)

    def settled_down(self) -> None:
        self.acknowledged |= self.waiting
        self.waiting = set()

    def settle(self) -> None:
        try:
            self.writer.settle()
        except OSError:
            assert not self.writer.settled
        else:
            self.settled_down()

    def take(self) -> None:
        """Read whatever has a segment's name; remove some of it, as ingest does once its rows are in the store."""
        fault, self.disk.fault = self.disk.fault, lambda operation, path: None
        for number in range(1, self.writers + 1):
            folder = run_dir(HOME, "run") / f"w{number}"
            for path in map(folder.joinpath, self.disk.names(folder)):
                if is_temporary(path):
                    continue
                found = decoded_segment(SegmentPath.parse(path), self.disk.read(path))
                (row,) = found.table["step"].to_pylist()
                assert self.taken.setdefault(found.segment_id, row) == row
                if self.random.random() < 0.5:
                    self.disk.unlink(path)
        self.disk.fault = fault

    def fault(self) -> None:
        code, chance = self.random.choice(FAULTS), self.random.choice((0.1, 0.5, 1.0))
        only = self.random.choice((None, None, "fsync", "rename", "unlink", "sync"))

        def refuse(operation: str, _: Path) -> int | None:
            return code if only in (None, operation) and self.random.random() < chance else None

        self.disk.fault = refuse

    def calm(self) -> None:
        self.disk.fault = lambda operation, path: None

    def kill(self) -> None:
        """Within one of the next operations."""
        self.disk.kill_in = self.random.randrange(12)

    def power(self) -> None:
        self.disk.power_cut()
        self.start()

    def live(self) -> None:
        for _ in range(60):
            try:
                getattr(self, self.random.choice(ACTIONS))()
            except Kill:
                if self.random.random() < 0.5:
                    self.disk.power_cut()
                self.start()
        self.disk.kill_in = None
        self.calm()
        self.settle()
        for _ in range(2):
            self.take()

    def check(self) -> None:
        rows = sorted(self.taken.values())
        assert len(rows) == len(set(rows)), "counted twice"
        assert self.acknowledged <= set(rows), "acknowledged and lost"


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_nothing_acknowledged_is_lost_and_nothing_counts_twice(first: int) -> None:
    acknowledged = faults = 0
    for seed in range(first, first + 100):
        world = World(seed)
        world.live()
        world.check()
        acknowledged += len(world.acknowledged)
        faults += world.disk.faults
    assert acknowledged > 500
    assert faults > 100
