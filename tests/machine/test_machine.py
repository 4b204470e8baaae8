"""One machine of everything from the recorder to the directive: what is said to be safe is, whatever happens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import replaced
from histories import HISTORIES, IN_A_BUCKET, drawn, go_through
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from machine_faults import PLANTED
from world import LOOK, MINUTE, TICK, World

from logprobe.collectors.errors import LogprobeError

RUN = st.sampled_from([0, 0, 1, 2])
SEED = st.integers(0, 2**16)
KILL = st.one_of(st.none(), st.integers(0, 99), st.integers(0, 99))  # percent of the operations until a kill
HOW = st.sampled_from(["", "", "", "sync 0.3", "broken 0.1", "full 0.5", "sync 0.3 before", "full 1.0 before"])
FAR = st.sampled_from(["memory", "spool", "spool", "archive", "archive", "archive", "message"])
LOST = st.sampled_from(
    [
        *("power home", "power node") * 3,
        *("index", "home", "service") * 2,
        "journal",
        "restart",
        "archive",
        "archive theirs",
        "index older",
    ]
)
COMMAND = st.sampled_from(["on", "on", "off", "suggest", "armed", "stop", "release", "silence"])
WAIT = st.sampled_from([0.0, 200.0, 4000.0])
FAST = "/dev/shm"


class Machine(RuleBasedStateMachine):
    """Runs on machines with one disk, `bucket`: or with a node and a service that share a bucket alone."""

    bucket = False
    work = 0  # faults that may happen until something is recorded again: one after the other proves little

    @initialize(seed=SEED)
    def begin(self, seed: int) -> None:
        self.root = Path(tempfile.mkdtemp(dir=FAST if Path(FAST).is_dir() else None))
        self.world = World(self.root, seed, bucket=self.bucket)
        self.world.__enter__()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.check(look=self.world.done["steps"] % 2 == 0)
                self.world.lose_index()  # what is in files alone is the truth
                self.world.check()
            finally:
                self.world.__exit__()
                shutil.rmtree(self.root, ignore_errors=True)

    # Records, and how far they come

    @rule(run=RUN, steps=st.integers(1, 4), seed=SEED, far=FAR, how=HOW, kill=KILL)
    def go(self, run: int, steps: int, seed: int, far: str, how: str, kill: int | None) -> None:
        """Record some steps, and bring them into memory, spool, archive, or a message; a kill and a refusing disk are
        at the end of that way."""
        self.work = 2
        world, odd = self.world, 0.3 * (seed % 5 == 0)
        if far == "memory":
            world.record(run, steps, seed, odd=odd, sampled=seed % 2 == 0)
        elif far == "spool":
            world.record(run, steps, seed)
            world.flush(run, kill, how)
        elif far == "archive":
            world.record(run, steps, seed)
            world.flush(run)
            world.ship()
            world.serve(*TICK, *MINUTE, kill=kill, how=how)
        else:
            world.record(2, 1 + steps, seed, sick=seed % 2 == 0)
            world.flush(2)
            world.ship()
            world.serve(*TICK)
            world.clock.up += 10.0
            world.serve(*LOOK, kill=kill)

    @precondition(lambda self: self.work > 0)
    @rule(run=RUN, how=st.sampled_from(["flush", "turn", "crash", "close"]))
    def stop(self, run: int, how: str) -> None:
        self.work -= 1
        getattr(self.world, how)(run)

    # What else happens

    @precondition(lambda self: self.work > 0)
    @rule(jobs=st.sampled_from([TICK, MINUTE, LOOK, TICK + LOOK, ()]), kill=KILL)
    def serve(self, jobs: tuple[str, ...], kill: int | None) -> None:
        self.work -= 1
        self.world.serve(*jobs, kill=kill) if jobs else self.world.ship(kill)

    @precondition(lambda self: self.work > 0)
    @rule(run=RUN, command=COMMAND, kill=KILL)
    def command(self, run: int, command: str, kill: int | None) -> None:
        self.work -= 1
        if command == "silence":
            self.world.silence(run, kill)
        else:
            self.world.command(run, command, kill)

    @precondition(lambda self: self.work > 0)
    @rule(what=st.sampled_from(["retire", "freeze"]), kill=KILL)
    def reduce(self, what: str, kill: int | None) -> None:
        self.work -= 1
        getattr(self.world, what)(kill)

    @precondition(lambda self: self.work > 0)
    @rule(run=RUN, kill=KILL)
    def delete(self, run: int, kill: int | None) -> None:
        self.work -= 1
        self.world.delete(run, kill)

    # Faults

    @precondition(lambda self: self.work > 0)
    @rule(what=LOST)
    def lose(self, what: str) -> None:
        self.work -= 1
        kind, _, where = what.partition(" ")
        lost = {
            "power": lambda: self.world.power_cut(where),
            "index": self.world.older_index if where else self.world.lose_index,
            "journal": lambda: self.world.lose_index(journal=True),
            "home": self.world.lose_home,
            "archive": lambda: self.world.elsewhere(theirs=where == "theirs"),
            "service": self.world.lose_service,
            "restart": self.world.restart,
        }
        lost[kind]()

    @precondition(lambda self: self.work > 0)
    @rule(what=st.sampled_from(["spoil", "copy", "plant", "late", "keep index"]), run=RUN, seed=SEED)
    def disturb(self, what: str, run: int, seed: int) -> None:
        self.work -= 1
        world = self.world
        done = {
            "spoil": lambda: world.spoil(run, seed),
            "copy": lambda: world.copy(seed),
            "plant": lambda: world.plant(run, seed),
            "late": lambda: world.late(seed),
            "keep index": world.keep_index,
        }
        done[what]()

    @precondition(lambda self: self.work > 0)
    @rule(what=st.sampled_from(["full", "read-only", "broken", "unread", "network", "harm"]), run=RUN, seed=SEED)
    def trouble(self, what: str, run: int, seed: int) -> None:
        self.work -= 1
        chance = (0.1, 0.5, 1.0)[seed % 3]
        if what == "harm":
            self.world.harm(run)
        elif what == "network":
            self.world.cut(chance)
        else:
            self.world.trouble(what, chance)

    @precondition(lambda self: self.work > 0)
    @rule(where=st.sampled_from(["home", "node"]), ahead=st.sampled_from([-3600.0, 0.0, 3600.0]), wait=WAIT)
    def clock(self, where: str, ahead: float, wait: float) -> None:
        self.work -= 1
        self.world.skew(where, ahead)
        self.world.clock.up += wait

    def check(self) -> None:
        """Compare; part of a kept case."""
        self.world.check()


class BucketMachine(Machine):
    bucket = True


SETTINGS = settings(
    max_examples=3,
    stateful_step_count=20,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestFolder = Machine.TestCase
TestFolder.settings = SETTINGS
TestBucket = BucketMachine.TestCase
TestBucket.settings = SETTINGS


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory, if there is memory for one: the disk is a simulated one."""
    with tempfile.TemporaryDirectory(dir=FAST if Path(FAST).is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_comes_out_right(name: str, place: Path) -> None:
    """With a bucket every second one; the campaign goes through all in both ways."""
    go_through(name, place, bucket=list(HISTORIES).index(name) % 2 == 1 or name in IN_A_BUCKET)


@pytest.mark.parametrize("seed", range(8))
def test_a_kill_in_any_turn_of_a_history_changes_nothing(seed: int, place: Path) -> None:
    name, bucket, doom = drawn(seed)
    go_through(name, place, bucket=bucket, doom=doom)


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_of_before_is_found(name: str, place: Path) -> None:
    fault = PLANTED[name]
    with replaced(*fault.changes), pytest.raises((AssertionError, LogprobeError, OSError)):
        go_through(fault.history, place, bucket=fault.bucket)
