"""One scenario of chaos: recorders and a service that are killed again and again on a disk that misbehaves; then the reckoning.

What `Recorder.flush` acknowledged is the reference: each of those sequences has to be in the store once, and whole.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from chaos import programs
from chaos.programs import RUN
from chaos.remote_disk import mounted
from faultfs.faultfs import FaultyDisk, Rule
from killed_processes import length

from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

RECORDERS: Final = 2
_PRELOADED: Final = (
    "logprobe.monitor.service.service",
    "logprobe.collectors.recorder.recorder",
    "pyarrow.parquet",
    "chaos.programs",
)
_PATIENCE: Final = 8.0  # the longest wait for a heartbeat before the next kill
_DRAINED_SECONDS: Final = 120.0
_MEGABYTE: Final = 1 << 20

Weather = Callable[[FaultyDisk, Path, int], list[Rule]]


@dataclass(frozen=True)
class Scenario:
    """`weather`: rules that come and go. `megabytes`: size of the disk, which is then filled now and then; None: large enough.

    `remote`: the home lies on a file system in user space, and recorders and service see it by different mounts.
    """

    words: str
    weather: Weather
    megabytes: int | None = None
    remote: bool = False


def _calm(disk: FaultyDisk, home: Path, seed: int) -> list[Rule]:
    return []


def _errors(disk: FaultyDisk, home: Path, seed: int) -> list[Rule]:
    """Every kind of call fails now and then, with every error that says nothing about a file's content."""
    spool, raw = home / "spool", home / "archive"
    return [
        disk.rule("open", "read", within=spool, error=errno.EIO, chance=0.1, seed=seed, active=False),
        disk.rule("open", "stat", "list", within=spool, error=errno.ESTALE, chance=0.1, seed=seed + 1, active=False),
        disk.rule("open", "mkdir", "list", within=spool, error=errno.EMFILE, chance=0.1, seed=seed + 2, active=False),
        disk.rule("write", "rename", "fsync", within=spool, error=errno.EIO, chance=0.1, seed=seed + 3, active=False),
        disk.rule("unlink", within=spool, error=errno.ESTALE, chance=0.2, seed=seed + 4, active=False),
        disk.rule(
            "open", "write", "fsync", "rename", within=raw, error=errno.EIO, chance=0.1, seed=seed + 5, active=False
        ),
        disk.rule("rename", within=spool, error=errno.ESTALE, chance=0.1, seed=seed + 6, done=True, active=False),
        disk.rule("open", "read", "write", within=spool, delay=0.02, chance=0.2, seed=seed + 7, active=False),
    ]


def _directories(disk: FaultyDisk, home: Path, seed: int) -> list[Rule]:
    """A slow disk whose directories cannot always be fsynced: the service takes a file before its writer knows that it is there."""
    spool = home / "spool"
    return [
        disk.rule("fsync", within=spool, only="directories", error=errno.EIO, chance=0.3, seed=seed, active=False),
        disk.rule(
            "fsync",
            within=spool,
            only="directories",
            error=errno.EIO,
            chance=0.5,
            seed=seed + 1,
            done=True,
            active=False,
        ),
        disk.rule("fsync", within=home, delay=0.1, active=False),
        disk.rule("rename", within=spool, delay=0.05, chance=0.5, seed=seed + 2, active=False),
    ]


def _full(disk: FaultyDisk, home: Path, seed: int) -> list[Rule]:
    """Beside the disk that is really full now and then: the spool refuses on its own, as a quota does."""
    return [disk.rule("write", within=home / "spool", error=errno.ENOSPC, chance=0.2, seed=seed, active=False)]


SCENARIOS: Final[dict[str, Scenario]] = {
    "remote": Scenario("a remote disk that answers ESTALE and shows names late", _calm, remote=True),
    "kills": Scenario("kill -9 only", _calm),
    "errors": Scenario("EIO, ESTALE, EMFILE and latency on every kind of call", _errors),
    "directories": Scenario("slow fsync, directory fsync fails", _directories),
    "full": Scenario("a disk of 64 MiB that fills up, ENOSPC", _full, megabytes=64),
}


@dataclass
class Outcome:
    """What became of a scenario; `lost` and `doubled` have to be 0."""

    scenario: str
    seed: int
    recorder_kills: int = 0
    service_kills: int = 0
    ended_by_themselves: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    full_disks: int = 0
    acknowledged: int = 0
    stored: int = 0
    under_fire: int = 0  # segments that the service took in before peace was made
    lost: int = 0
    doubled: int = 0
    damaged: int = 0  # acknowledged, and not whole
    quarantined: int = 0
    left_over: int = 0  # files of the spool that are not in the store, raw files that are not registered
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Of both."""
        return self.recorder_kills + self.service_kills

    @property
    def good(self) -> bool:
        """Whether everything that was promised was kept, and something was tried."""
        return (
            not (self.lost or self.doubled or self.damaged or self.quarantined or self.left_over)
            and self.acknowledged > 0
        )


class Torment:
    """The processes of one scenario."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        self.outcome = Outcome(name, seed)
        self._folder = folder
        self._remote = SCENARIOS[name].remote
        self.home = self._service_home = folder / "disk" / "home"
        if self._remote:
            self._trainer_home, self._service_home = (folder / side / "home" for side in ("trainers", "services"))
        else:
            self._trainer_home = self.home
        self._seed = seed
        self._rng = random.Random(seed)
        self._acknowledgements = folder / "acknowledged"
        self._acknowledgements.touch()
        self._ballast = folder / "disk" / "ballast" if SCENARIOS[name].megabytes else None
        self._disk = FaultyDisk(folder / "faults")
        self._rules = SCENARIOS[name].weather(self._disk, self.home, seed)
        self._context = multiprocessing.get_context("forkserver")
        self._lives = [0] * RECORDERS
        self._service: ForkServerProcess
        self._recorders: list[ForkServerProcess]

    def run(self, kills: int, *, until: float = float("inf")) -> Outcome:
        """Kills so often, or until this moment of the monotonic clock; → what became of it."""
        started = time.monotonic()
        with self._processes():
            while self.outcome.kills < kills and time.monotonic() < until:
                self._change_the_weather()
                self._wait()
                self._kill_one()
                self._restart_those_that_ended()
            self._clear_up()
        self.reckon()
        self.outcome.seconds = round(time.monotonic() - started, 1)
        return self.outcome

    @contextmanager
    def _processes(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._remote:
                disk, seed = self._folder / "disk", ("--seed", str(self._seed))
                stack.enter_context(mounted(disk, self._trainer_home.parent, "--stale", "0.05", *seed))
                stack.enter_context(mounted(disk, self._service_home.parent, "--stale", "0.2", "--delay", "0.7", *seed))
            stack.enter_context(self.running())
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """The processes, killed all at once at the end of the block."""
        self._start_fork_server()
        self._service = self._start_service()
        self._recorders = [self._start_recorder(number) for number in range(RECORDERS)]
        try:
            yield
        finally:
            for process in (self._service, *self._recorders):
                process.kill()
                process.join()

    def _start_fork_server(self) -> None:
        """Only the fork server, and what it forks, gets the faulty disk."""
        self._context.set_forkserver_preload(list(_PRELOADED))
        before = dict(os.environ)
        os.environ.update(self._disk.environment())
        try:
            first = self._context.Process(target=programs.nothing)
            first.start()
            first.join()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _start(self, target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
        process = self._context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def _start_service(self) -> ForkServerProcess:
        return self._start(programs.serve, self._service_home)

    def _start_recorder(self, number: int) -> ForkServerProcess:
        self._lives[number] += 1
        return self._start(
            programs.record, self._trainer_home, f"r{number}", self._lives[number], self._seed, self._acknowledgements
        )

    def _change_the_weather(self) -> None:
        for rule in self._rules:
            (rule.start if self._rng.random() < 0.4 else rule.stop)()
        if self._ballast is None:
            return
        if self._rng.random() < 0.4:
            self._fill()
        else:
            self._ballast.unlink(missing_ok=True)

    def _fill(self) -> None:
        """Leaves nothing, or next to nothing."""
        self.outcome.full_disks += 1
        room = self._rng.choice((0, 64 << 10, _MEGABYTE))
        space = os.statvfs(self._ballast.parent)
        with suppressed_full(), self._ballast.open("ab", buffering=0) as ballast:
            left = space.f_bavail * space.f_frsize - room
            while left > 0:
                left -= ballast.write(bytes(min(left, _MEGABYTE)))

    def _wait(self) -> None:
        """Some lives end in the middle of starting, others some time after something was acknowledged, or taken in."""
        drawn = self._rng.random()
        if drawn < 0.35:
            self.wait_for_acknowledgement()
        elif drawn < 0.7:
            before = self._raw_files()
            self._wait_for(lambda: self._raw_files() - before)
        time.sleep(self._rng.uniform(0.0, 0.4))

    def wait_for_acknowledgement(self) -> None:
        """Not for ever: on a disk that refuses, there may be none."""
        size = self._acknowledgements.stat().st_size
        self._wait_for(lambda: self._acknowledgements.stat().st_size > size)

    def _wait_for(self, condition: Callable[[], object], seconds: float = _PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _raw_files(self) -> set[str]:
        """Written by the service, and perhaps not committed yet."""
        return {path.name for path in (self.home / "archive" / RUN).glob("*/*")}

    def _kill_one(self) -> None:
        victim = self._rng.randrange(RECORDERS + RECORDERS)  # the service as often as all recorders together
        process = self._recorders[victim] if victim < RECORDERS else self._service
        alive = process.is_alive()
        process.kill()
        process.join()
        if victim < RECORDERS:
            self.outcome.recorder_kills += alive
            self._recorders[victim] = self._start_recorder(victim)
        else:
            self.outcome.service_kills += alive
            self._service = self._start_service()

    def _restart_those_that_ended(self) -> None:
        """As a supervisor does. A recorder closes in some of its lives; a service may not be able to start on a disk that refuses."""
        for number, process in enumerate(self._recorders):
            if not process.is_alive():
                self._note_end("recorder", process)
                self._recorders[number] = self._start_recorder(number)
        if not self._service.is_alive():
            self._note_end("service", self._service)
            self._service = self._start_service()

    def _note_end(self, who: str, process: ForkServerProcess) -> None:
        key = f"{who} {process.exitcode}"
        self.outcome.ended_by_themselves[key] = self.outcome.ended_by_themselves.get(key, 0) + 1

    def _clear_up(self) -> None:
        """The disk is well again; what runs may go on for a moment."""
        self.outcome.faults = sum(rule.injected for rule in self._rules)
        for rule in self._rules:
            rule.stop()
        if self._ballast is not None:
            self._ballast.unlink(missing_ok=True)
        self._restart_those_that_ended()
        self._wait_for(lambda: self._acknowledgements.stat().st_size, 60.0)  # on a slow machine it is the first time
        time.sleep(1.0)

    def reckon(self) -> None:
        """Compares what was acknowledged with what is in the store."""
        acknowledged = set(self._acknowledgements.read_text().split())
        self.outcome.acknowledged = len(acknowledged)
        with Home(self.home).lock(), Store.open(Home(self.home)) as store:
            self.outcome.under_fire = store.query("SELECT count(*) AS n FROM segments")["n"][0].as_py()
            _drain(store)
            _compare(store, acknowledged, self.outcome)


@contextmanager
def suppressed_full() -> Iterator[None]:
    """ENOSPC is what was wanted."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _drain(store: Store) -> None:
    """Ingests what is left in the spool; what cannot be read has a moment to become readable."""
    ingester = Ingester(store)
    deadline = time.monotonic() + _DRAINED_SECONDS
    while time.monotonic() < deadline:
        ingester.run_once()
        store.archive.merge(everything=True)
        if not list(store.home.spool.rglob("[!.]*.arrow")):
            return
        time.sleep(0.2)


def _compare(store: Store, acknowledged: set[str], outcome: Outcome) -> None:
    rows = store.query("SELECT sample_id, n, n_total, raw_kept FROM sequences WHERE run = ?", [RUN]).to_pylist()
    known = {row["sample_id"]: row for row in rows}
    tokens = dict(
        zip(*store.query("SELECT sample_id, count(*) AS n FROM tokens GROUP BY 1").to_pydict().values(), strict=True)
    )
    rollouts = store.query("SELECT count(*) AS n, count(DISTINCT sample_id) AS d FROM rollouts").to_pylist()[0]
    measured = store.query("SELECT coalesce(sum(tokens), 0)::BIGINT AS n FROM steps")["n"][0].as_py()
    expected = sum(length(sample_id) for sample_id in known)
    outcome.stored = len(known)
    outcome.lost = len(acknowledged - known.keys())
    outcome.doubled = len(rows) - len(known) + rollouts["n"] - rollouts["d"] + (measured != expected)
    outcome.doubled += sum(n > length(sample_id) for sample_id, n in tokens.items())
    outcome.damaged = sum(
        known[sample_id]["n_total"] != length(sample_id) or tokens.get(sample_id) != length(sample_id)
        for sample_id in acknowledged & known.keys()
    )
    outcome.quarantined = store.query("SELECT path FROM quarantine").num_rows
    registered = set(store.query("SELECT path FROM raw_files")["path"].to_pylist())
    raw = {store.home.relative(path) for path in store.home.raw.glob("[!!]*/*/*")}
    outcome.left_over = len(list(store.home.spool.rglob("[!.]*.arrow"))) + len(raw ^ registered)


def document(outcome: Outcome) -> str:
    """One line of JSON."""
    return json.dumps({**asdict(outcome), "good": outcome.good})
