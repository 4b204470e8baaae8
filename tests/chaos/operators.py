"""What operators do to a home, at random: lose, cut, restore, copy and mount late its store; then the way back, sometimes killed, too.

Each scenario is one fault with random timing. What `Recorder.flush` acknowledged is the reference: every sequence has to be in the store
once, with all of its tokens, and every raw file that was ever complete is on the disk for as long as nobody took its rows in.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from operator_homes import FAULTS, health, health_at, is_well, raw_files, table, unwell, waiting
from processes import connected, eventually, record

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

PAGE: Final = Path(__file__).parents[1] / "RESULTS.md"
_PRELOADED: Final = ("logprobe.app.processes.service", "logprobe.app.cli", "pyarrow.parquet", "chaos.operators")
_WHOLE: Final = "SELECT sample_id FROM tokens WHERE run = ? GROUP BY ALL HAVING count(*) = 16"
_SEQUENCES: Final = 4  # of a step: see `processes.record`
_KILLED_COMMANDS: Final = 0.4  # share of commands that are killed once


class Drill:
    """One home, its processes, and what was acknowledged."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.rng = random.Random(seed)
        self.run = "toy"
        self.steps = 0
        self.log = folder / "log"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))

    def record(self, home: Path | None = None) -> None:
        """Some steps, acknowledged."""
        more = self.rng.randint(1, 3)
        record(home or self.home, self.run, steps=range(self.steps, self.steps + more))
        self.steps += more

    @contextmanager
    def serving(self, home: Path | None = None, *, killed: bool | None = None) -> Iterator[Any]:
        """A service, stopped or killed at the end of the block (None: either)."""
        place = home or self.home
        process = self._start(serve, place, self.log)
        try:
            with connected(place) as reader:
                yield reader
        finally:
            kills = self.rng.random() < 0.5 if killed is None else killed
            os.kill(process.pid, signal.SIGKILL if kills else signal.SIGTERM)
            process.join(120)

    def ingested(self, *, killed: bool | None = None) -> None:
        """Records, and has a service take all of it; then some more that it may or may not have taken when it ends."""
        self.record()
        with self.serving(killed=killed) as reader:
            reader.ingest()
            if self.rng.random() < 0.5:
                self.record()

    def command(self, *arguments: str, kill: float = _KILLED_COMMANDS) -> None:
        """A command that has to succeed; before that it is killed now and then, wherever it is."""
        line = [*arguments, "--home", str(self.home)]
        if self.rng.random() < kill:
            process = self._start(run_command, line, self.log)
            time.sleep(self.rng.uniform(0.0, 1.5))
            process.kill()
            process.join()
        process = self._start(run_command, line, self.log)
        process.join(300)
        assert process.exitcode == 0, f"{arguments}: exit {process.exitcode}\n{self.log.read_text()[-3000:]}"

    def refused(self, fault: str) -> None:
        """A service says so, and touches nothing; recording continues meanwhile."""
        before = raw_files(self.home)
        with self.serving():
            assert str(FAULTS[fault]) in unwell(self.home), unwell(self.home)
            self.record()
        assert raw_files(self.home) >= before, "a raw file is gone"

    def reckon(self) -> Counter[str]:
        """With all of it ingested: what is lost, doubled or not whole."""
        with self.serving(killed=False) as reader:
            eventually(lambda: reader.ingest() is not None and not waiting(self.home), "all is taken in")
            eventually(lambda: is_well(self.home), f"/healthz is well: {health(self.home)[1]['problems']}")
        with Store.open(Home(self.home), read_only=True) as store:
            rows = store.query(
                "SELECT sample_id, count(*) AS n FROM sequences WHERE run = ? GROUP BY ALL", [self.run]
            ).to_pylist()
            whole = store.query(_WHOLE, [self.run])
        acknowledged = {f"s{step}-{row}" for step in range(self.steps) for row in range(_SEQUENCES)}
        there = {row["sample_id"] for row in rows}
        return Counter(
            acknowledged=len(acknowledged),
            lost=len(acknowledged - there),
            doubled=sum(row["n"] > 1 for row in rows),
            damaged=len(acknowledged & there - set(whole["sample_id"].to_pylist())),
        )

    def _start(self, target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
        process = self._context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process


def serve(home: Path, log: Path) -> None:
    """The service, with all of its parts."""
    from logprobe.app.processes import service

    with log.open("a") as file, redirect_stderr(file), redirect_stdout(file):
        raise SystemExit(service.main(["--home", str(home)]))


def run_command(arguments: list[str], log: Path) -> None:
    """One command line."""
    from logprobe.app import cli

    with log.open("a") as file, redirect_stderr(file), redirect_stdout(file):
        raise SystemExit(cli.main(arguments))


def _lost(drill: Drill) -> None:
    drill.ingested()
    for name in ("logprobe.duckdb", "logprobe.duckdb.wal"):
        (drill.home / name).unlink(missing_ok=True)
    if raw_files(drill.home):
        drill.refused("`logprobe.duckdb` removed or replaced by another one")
    drill.command("store", "check", "--repair")


def _yesterdays(drill: Drill) -> None:
    """Put back by hand, or by the command that is made for it."""
    drill.ingested(killed=False)
    by_hand = drill.rng.random() < 0.5
    if by_hand:
        shutil.copy(drill.home / "logprobe.duckdb", drill.folder / "yesterday")
    else:
        drill.command("store", "copy", str(drill.folder / "backup"), kill=0.0)
    drill.ingested(killed=False)
    if by_hand:
        shutil.copy(drill.folder / "yesterday", drill.home / "logprobe.duckdb")
        drill.refused("An older `logprobe.duckdb` put back")
        drill.command("store", "check", "--repair")
    else:
        for file in (drill.folder / "backup").glob("logprobe.duckdb*"):
            shutil.copy(file, drill.home / file.name)
        drill.command("store", "check", "--repair")


def _cut(drill: Drill) -> None:
    """The write-ahead log lost, cut or flipped: a start loses nothing, or says that it is damaged."""
    drill.ingested(killed=True)
    log = drill.home / "logprobe.duckdb.wal"
    if not log.exists():
        return
    data = bytearray(log.read_bytes())
    kind = drill.rng.choice(("lost", "cut", "flipped"))
    place = drill.rng.randrange(len(data)) if data else 0
    if kind == "flipped" and data:
        data[place] ^= 1 << drill.rng.randrange(8)
    log.write_bytes(data if kind == "flipped" else data[:place]) if kind != "lost" else log.unlink()
    process = drill._start(serve, drill.home, drill.log)
    try:
        ready = eventually(lambda: not process.is_alive() or _answers(drill.home), "it starts, or says why not")
        damaged = ready is True and not process.is_alive()
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        process.join(120)
    if damaged:
        assert str(FAULTS["The write-ahead log damaged"]) in drill.log.read_text(), drill.log.read_text()[-2000:]
        drill.command("store", "check", "--repair")


def _answers(home: Path) -> bool:
    try:
        return health(home)[0] in {200, 503}
    except (AssertionError, OSError):
        return False


def _unmount(drill: Drill) -> Callable[[], None]:
    """Takes ``raw/`` away; → puts it back."""
    raw, elsewhere = drill.home / "raw", drill.folder / "unmounted"
    raw.rename(elsewhere)
    raw.mkdir()

    def mount() -> None:
        shutil.rmtree(raw)
        elsewhere.rename(raw)

    return mount


def _late_mount(drill: Drill) -> None:
    drill.ingested()
    mount = _unmount(drill)
    with drill.serving() as reader:
        assert str(FAULTS["`raw/` not mounted, at the start or later"]) in unwell(drill.home)
        drill.record()
        if drill.rng.random() < 0.5:
            with suppress(Exception):
                reader.ingest()
        mount()
        if drill.rng.random() < 0.5:
            eventually(lambda: is_well(drill.home), "/healthz is well again")


def _unmounted(drill: Drill) -> None:
    drill.record()
    with drill.serving() as reader:
        reader.ingest()
        mount = _unmount(drill)
        drill.record()
        assert str(FAULTS["`raw/` not mounted, at the start or later"]) in unwell(drill.home)
        if drill.rng.random() < 0.5:
            mount()
            mount = lambda: None
            eventually(lambda: is_well(drill.home), "/healthz is well again")
    mount()


def _copy(drill: Drill) -> None:
    """A copy whose ``raw/`` is a link to the original's is served beside it."""
    disk = drill.folder / "disk"
    disk.mkdir()
    drill.home.mkdir()
    (drill.home / "raw").symlink_to(disk)
    drill.ingested()
    copy = drill.folder / "copy"
    subprocess.run(["cp", "-a", drill.home, copy], check=True)
    drill.record()
    with drill.serving() as reader:
        if drill.rng.random() < 0.5:
            reader.ingest()
        before = raw_files(drill.home)
        with drill.serving(copy):
            assert str(FAULTS["A copy of the home whose `raw/` is a link"]) in unwell(copy)
        assert raw_files(drill.home) >= before
    with drill.serving(copy):
        assert str(FAULTS["A copy of the home whose `raw/` is a link"]) in unwell(copy)


def _moved(drill: Drill) -> None:
    drill.ingested()
    drill.home = drill.home.rename(drill.folder / "moved")


def _renamed(drill: Drill) -> None:
    drill.record()
    with drill.serving() as reader:
        reader.ingest()
        info = Home(drill.home).service_info()
        assert info is not None
        drill.home.rename(drill.folder / "elsewhere")
        steps = drill.steps
        drill.record()  # a trainer that goes on by the old name
        (problem, *_) = eventually(lambda: health_at(info.health_port)[1]["problems"], "/healthz says so")
        assert str(FAULTS["The home renamed or removed under the service"]) in problem
        shutil.copytree(drill.home / "spool", drill.folder / "elsewhere" / "spool", dirs_exist_ok=True)
        assert drill.steps > steps
        shutil.rmtree(drill.home)
        (drill.folder / "elsewhere").rename(drill.home)
        eventually(lambda: is_well(drill.home), "/healthz is well again")


SCENARIOS: Final[dict[str, Callable[[Drill], None]]] = {
    "store lost": _lost,
    "store restored": _yesterdays,
    "log cut": _cut,
    "raw mounted late": _late_mount,
    "raw unmounted": _unmounted,
    "copy beside": _copy,
    "home moved": _moved,
    "home renamed": _renamed,
}


def one(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """One scenario; → what became of it."""
    drill, began = Drill(folder, seed), time.monotonic()
    SCENARIOS[name](drill)
    return {**drill.reckon(), "scenario": name, "seed": seed, "seconds": round(time.monotonic() - began, 1)}


def write_table() -> None:
    """Puts what ``/healthz`` answered into tests/RESULTS.md."""
    text = PAGE.read_text(encoding="utf-8")
    head = table().partition("\n")[0]
    before, _, rest = text.partition(head)
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(f"{before}{table()}{after}", encoding="utf-8")
