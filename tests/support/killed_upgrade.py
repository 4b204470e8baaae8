"""An older store that is upgraded, and killed while it is: the old one or the new one is left, never something between."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import duckdb
from processes import eventually

from logprobe.monitor.home import Home
from logprobe.monitor.store.migrations import current_version, migrate
from logprobe.monitor.store.sql_files import migrations
from logprobe.monitor.store.store import Store

OLD = 2  # the version from which on the upgrade changes rows, not only columns
ROWS = 60_000

FILL = f"""
INSERT INTO profiled_steps SELECT 'run', range, range, 1 FROM range({ROWS});
INSERT INTO profiles
SELECT 'run', range // 4, 'backend', ['position', 'log_ratio'][1 + range % 2], range % 7, 1, 0, 0, 0 FROM range({4 * ROWS});
INSERT INTO segments
SELECT 'run/w/' || range, 'run', 'w', range, 'training', 1, 1, 1, NULL, now() FROM range({ROWS});
"""
CONTENT = """
SELECT (SELECT count(DISTINCT segment_id) FROM segments), (SELECT sum(sequence) FROM segments),
       (SELECT count(*) FROM profiles), (SELECT count(*) FROM profiled_steps), (SELECT sum(revision) FROM profiled_steps)
"""
State = tuple[int, tuple[int, ...]]


def upgrade(home: Path, begun: Path, ended: Path) -> None:
    """What is killed: opens the store, which upgrades it; says when it begins and when it has done so."""
    begun.touch()
    Store.open(Home(home)).close()
    ended.touch()


def old_store(home: Home) -> None:
    """A store as an older version left it."""
    home.create()
    with duckdb.connect(str(home.database), config={"storage_compatibility_version": "v1.5.0"}) as connection:
        migrate(connection, home, migrations()[:OLD])
        connection.execute(FILL)


def state(home: Home) -> State:
    """Schema version and content, as the file has them now."""
    with duckdb.connect(str(home.database), read_only=True) as connection:
        (content,) = connection.execute(CONTENT).fetchall()
        return current_version(connection), content


class Upgrades:
    """Upgrades of copies of one old store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = Home(folder / "made")
        old_store(self._made)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["logprobe.monitor.store.store"])
        self.before = state(self._made)

    def whole(self) -> tuple[State, float]:
        """One that is left in peace: its outcome, and the seconds it took."""
        home, process = self._start("whole")
        started = time.monotonic()
        process.join()
        return state(home), time.monotonic() - started

    def killed(self, name: str, seconds: float) -> tuple[State, State]:
        """One that is killed after some time: how the store is left, and after the next start."""
        home, process = self._start(name)
        time.sleep(seconds)
        process.kill()
        process.join()
        left = state(home)
        Store.open(home).close()
        found = left, state(home)
        shutil.rmtree(home.path)
        return found

    def _start(self, name: str) -> tuple[Home, ForkServerProcess]:
        home = Home(self._folder / name)
        shutil.copytree(self._made.path, home.path)
        begun, ended = self._folder / f"{name} begun", self._folder / f"{name} ended"
        process = self._context.Process(target=upgrade, args=(home.path, begun, ended), daemon=True)
        process.start()
        eventually(begun.exists, "the upgrade begins")
        return home, process


def torment(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kills so many upgrades at random moments; counts how the store was left (``old``, ``new``, ``broken``) and ``unfinished`` ones.

    More of them, up to ten times as many, while all were killed too late to show anything: the one that was measured may have been slow.
    """
    upgrades, rng = Upgrades(folder), random.Random(seed)
    after, seconds = upgrades.whole()
    assert upgrades.before[0] == OLD
    assert after[0] == migrations()[-1].version
    counts = {"old": 0, "new": 0, "broken": 0, "unfinished": 0}
    for kill in range(10 * kills):
        if kill >= kills and counts["old"]:
            break
        moment = rng.uniform(0.0, seconds)
        left, finished = upgrades.killed(f"killed {kill}", moment)
        seconds = min(seconds, moment) if left == after else seconds
        counts["old" if left == upgrades.before else "new" if left == after else "broken"] += 1
        counts["unfinished"] += finished != after
    return counts
