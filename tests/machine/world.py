"""The machine's world: runs that record, a service, a disk and a network, what may happen to them, and what must hold.

Beside the product it is remembered what was handed over and what was acknowledged. After every fault the world is
healed, the service works off what there is, and everything is compared.
"""

from __future__ import annotations

import errno
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np
from actors import Clock, Life, Node, Run, Sequence, one_thread, oracle, turn
from lossy_network import TROUBLES, Objects, Phone
from power_disk import Kill, MachineDisk

from logprobe.collectors import files
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.errors import ConfigurationError, LogprobeError, StoreError
from logprobe.collectors.shipping.bucket import DELETED
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.store.freezing import Freezer, StoreBudget
from logprobe.monitor.store.raw_files import NAME
from logprobe.monitor.store.retention import RetentionPolicy
from logprobe.monitor.store.store import Store

RUNS = 3
TICK = ("pull", "ingest")
LOOK = ("health", "profiles", "diagnosis", "alerts", "controller", "delivery", "tell")
MINUTE = ("retention", "mirror", "deletions")
CODES = {"full": errno.ENOSPC, "read-only": errno.EROFS}  # others: EIO
REFUSED = {
    "full": {"write", "mkdir", "create"},
    "read-only": {"create", "open", "write", "truncate", "rename", "unlink", "mkdir", "rmdir"},
    "sync": {"fsync", "renamed"},
    "unread": {"read", "list"},
    "unanswered": {"renamed"},
    "broken": {"read", "list", "create", "write", "fsync", "truncate", "rename", "unlink", "mkdir"},
}
ROUNDS = 12  # of a healed world until everything is worked off
MOST_COPIES = 50
HIGH = "high"  # name of a threshold that sick runs alone exceed
CONFIGURATION = f"""
alerts:
  - {{name: {HIGH}, metric: k3_kl, above: 0.01, steps: 2, severity: critical}}
correction: {{notice_steps: 1, min_coverage: 0.0, cool_down_steps: 0, max_switches: 1000}}
"""


HAPPENED: Counter[str] = Counter()  # in all histories of this process


@dataclass(frozen=True)
class Doom:
    """A kill to come: in which turn of a process, at which share of its operations, and what is lost then."""

    turn: int
    percent: int
    then: str


class World:
    """One history. `seed` decides every draw that no caller makes."""

    def __init__(self, root: Path, seed: int, *, bucket: bool) -> None:
        self.random = Random(seed)
        self.bucket = bucket
        self.home, self.folder = root / "home", root / "node" if bucket else root / "home"
        self.clock = Clock(float(root.stat().st_mtime // 1))
        self.disk = MachineDisk(root, seed, lambda: self.clock.start + self.clock.up, lambda: self.clock.where)
        self.objects = Objects(seed, lambda: self.clock.start + self.clock.up)
        self.phone = Phone(seed)
        self.runs: dict[str, Run] = {}
        self.life: Life | None = None
        self.node: Node | None = None
        self.policy = RetentionPolicy()
        self.keeps: dict[str, set[Path]] = defaultdict(set)  # folders that a process has seen to be durable
        self.done: Counter[str] = Counter()
        self._spans: dict[object, int] = {}  # what a process did → operations that it took
        self.mistaken = False  # another folder lies in the archive's place
        self.copies: list[tuple[Path, bytes]] = []  # segments as they were written, below a home
        self.foreign: dict[Path, bytes] = {}  # files that somebody has laid into the archive
        self.unfinished: set[Path] = set()  # that the service found when it started
        self.silences: dict[str, str] = {}  # id → run, of those that were confirmed
        self.kept_index: dict[str, bytes] | None = None
        self.turns = 0  # that a process has had
        self.doom: Doom | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(one_thread(self.clock, self.objects, self.phone, self.random, self.disk))
        self._stack.enter_context(self.disk.installed())
        self.folder.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.disk.kill_in = self.disk.fault = None
        for run in self.runs.values():
            self.done["acknowledged records"] += sum(each.trained + each.sampled for each in run.sequences.values())
            run.end()
        self.lose_service()
        self.disk.end_process("node")
        self._stack.close()
        HAPPENED.update(self.done)

    @contextmanager
    def on(self, where: str) -> Iterator[None]:
        """Work as a process of a machine: its clock, and the folders that it knows to be durable."""
        before, self.clock.where = self.clock.where, where
        files.DISK.durable_folders = self.keeps[where]
        try:
            yield
        finally:
            self.clock.where = before
            files.DISK.durable_folders = self.keeps[before]

    # --- Collectors

    def run(self, number: int) -> Run:
        """Return a run; one whose name was deleted makes room for another name."""
        name = f"run-{number}"
        while name in self.runs and self.runs[name].deleted:
            name += "+"
        if name not in self.runs:
            self.runs[name] = Run(name, received=number % 2 == 0, folder=self.folder)
        run = self.runs[name]
        if run.trainer is None:
            with self.on("node"):
                run.begin(self.random)
            self.done["attempts"] += 1
        return run

    def resume(self, number: int, step: int) -> None:
        """Begin a run again, from a checkpoint before `step`."""
        run = self.run(number)
        run.end()
        with self.on("node"):
            run.begin(self.random, step)
        self.done["attempts"] += 1

    def record(
        self, number: int, steps: int, seed: int, *, odd: float = 0.0, sampled: bool = True, sick: bool = False
    ) -> None:
        """Let a run train some steps, which its recorders keep in memory."""
        run, rng = self.run(number), np.random.default_rng(seed)
        run.sick = sick
        run.was_sick |= sick or odd > 0
        with self.on("node"):
            for _ in range(steps):
                run.hear()
                run.train(rng, odd=odd, sampled=sampled)
                self.clock.up += 1.0
        self.done["steps"] += steps

    def late(self, seed: int) -> None:
        """Let deleted runs go on, whose trainers know nothing of that, or begin again under the old name."""
        rng = np.random.default_rng(seed)
        for run in self.runs.values():
            if run.deleted:
                with self.on("node"):
                    if run.trainer is None:
                        run.begin(self.random)
                    run.train(rng, odd=0.0, sampled=True)
                    run.flush()
                self.done["late"] += 1

    def flush(self, number: int, kill: int | None = None, how: str = "", kinds: str = "sampled trained") -> None:
        """Flush a run's recorders, on a disk that refuses; ``before``: refused what their threads wrote before that.

        `kinds`: what is flushed, of the engine and of the trainer.
        """
        run = self.run(number)
        if how.endswith("before"):
            with self._refusing(how):
                self.turn(number)
            self.clock.up, how = self.clock.up + 60.0, ""
        with self.on("node"), self._refusing(how), self._killing(kill, run.end, "flush"):
            run.flush(kinds)
        self.done["flushes"] += 1
        with self.disk.aside():
            found = [*(self.folder / "spool").rglob("[!.]*.arrow")][: MOST_COPIES - len(self.copies)]
            self.copies += [(path.relative_to(self.folder), path.read_bytes()) for path in found]

    def turn(self, number: int) -> None:
        """Let the recorders' threads write what is there, without anyone hearing of it."""
        run = self.run(number)
        with self.on("node"):
            for made in (run.engine, run.trainer):
                if made is not None:
                    turn(made)

    def crash(self, number: int) -> None:
        """Kill trainer and engine of a run."""
        self.run(number).end()
        self.done["killed trainers"] += 1

    def close(self, number: int) -> None:
        """End trainer and engine of a run in order."""
        run = self.run(number)
        with self.on("node"):
            for made, kind in ((run.engine, "sampled"), (run.trainer, "trained")):
                if made is not None and made.close(1.0):
                    for each in run.unsaid[kind]:
                        setattr(each, kind, True)
        run.end()

    @contextmanager
    def _killing(self, kill: int | None, gone: Callable[[], None], what: object) -> Iterator[None]:
        """Kill the process that works here, at a share of the operations that this took the last time; or where the
        caller's turn has set its end."""
        before, doom = self.disk.operations, self.doom
        self.turns += 1
        if doom is not None and doom.turn == self.turns:
            kill = doom.percent
        if kill is not None:
            self.disk.kill_in = kill * self._spans.get(what, 60) // 100
        try:
            yield
        except Kill as killed:
            self.done["kills"] += 1
            self.done[f"killed at {killed.args[0]}"] += 1
            self.disk.kill_in = None
            gone()
            if doom is not None and doom.turn <= self.turns:
                self.doom = None
                self.lose(doom.then)
        else:
            self._spans[what] = max(self.disk.operations - before, 10)
        finally:
            if kill is not None:
                self.disk.kill_in = None

    # --- The service

    def serve(self, *jobs: str, kill: int | None = None, how: str = "") -> None:
        """Let jobs of the service have their turns; it may be killed in the middle, or in its start."""
        what = jobs, self.life is None
        with self.on("home"), self._refusing(how), self._killing(kill, self.lose_service, what):
            try:
                if self.life is None:
                    self.keeps["home"].clear()
                    self._configure()
                    self.unfinished = self._unfinished()
                    self.life = Life(self.home, bucket_=self.bucket, policy=self.policy)
                    self.done["starts"] += 1
            except (LogprobeError, OSError) as error:
                self.disk.end_process("home")
                self._require_trouble(error)
                return
            for job in jobs:
                self.clock.up += 0.1
                try:
                    self.life.do(job)
                except (LogprobeError, OSError) as error:
                    self._require_trouble(error)

    def _configure(self) -> None:
        with self.disk.aside():
            self.home.mkdir(exist_ok=True)
            if not (path := self.home / "logprobe.yaml").exists():
                path.write_text(CONFIGURATION)

    def _require_trouble(self, error: Exception) -> None:
        """Raise the error again in a healthy world."""
        self.done["refused"] += 1
        if self.disk.fault is None and not self.objects.kinds and not self.mistaken:
            raise error

    def lose_service(self) -> None:
        """Kill the service."""
        life, self.life = self.life, None
        if life is not None:
            life.kill()
        self.disk.end_process("home")

    def ship(self, kill: int | None = None) -> None:
        """Let the node's shipper have a turn."""
        if not self.bucket:
            return

        def gone() -> None:
            self.node = None

        with self.on("node"), self._killing(kill, gone, "ship"):
            self.node = self.node or Node(self.folder)
            self.node.ship()
            for run in self.runs.values():
                self.node.follow(run.name)

    def act(self, name: str, **document: Any) -> bool:
        """Do what a user asks of the service; return whether that was confirmed."""
        self.serve()
        if self.life is None:
            return False
        with self.on("home"):
            try:
                self.life.act(name, **document)
            except ConfigurationError:
                return False
            except (LogprobeError, OSError) as error:
                self._require_trouble(error)
                return False
        return True

    def command(self, number: int, command: str, kill: int | None = None) -> None:
        """Switch the correction of a run, as a user does; what was confirmed is not forgotten."""
        run = self.run(number)
        run.mode = None
        with self._killing(kill, self.lose_service, "command"):
            if self.act("correction.command", run=run.name, command=command, by="ann", force=True):
                run.mode = command if command in {"suggest", "armed"} else None
                self.done[f"command {command}"] += 1

    def silence(self, number: int, kill: int | None = None) -> None:
        """Silence a rule that no alert has, as a user does; what was confirmed is not forgotten."""
        run, name = self.run(number), f"silence-{len(self.silences)}"
        request = {"id": name, "run": run.name, "rule": "none", "for": "90d", "author": "ann", "reason": "a test"}
        with self._killing(kill, self.lose_service, "silence"):
            if self.act("alerts.silence", **request):
                self.silences[name] = run.name
                self.done["silences"] += 1

    def delete(self, number: int, kill: int | None = None) -> None:
        """Delete a run, which may be recording."""
        run = self.run(number)
        run.deleted = "asked"
        with self._killing(kill, self.lose_service, "delete"):
            if self.act("run.delete", run=run.name, author="ann", force=True):
                run.deleted = "confirmed"
                self.done["deleted runs"] += 1
        with self.on("home"):
            if run.deleted == "asked" and self.life is not None and self.life.store is not None:
                with suppress(StoreError):  # on a disk that refuses reading it is unknown
                    run.deleted = "asked" if run.name in self.life.store.archive.tombstones else ""

    # --- Faults

    def lose(self, what: str) -> None:
        """Lose one of ``power``, ``index`` and ``journal``, or nothing."""
        if what == "power":
            self.power_cut("home")
        elif what:
            self.lose_index(journal=what == "journal")

    def power_cut(self, where: str) -> None:
        """Take the power of a machine; without a bucket all are one."""
        if where == "home" or not self.bucket:
            self.lose_service()
        if where == "node" or not self.bucket:
            for run in self.runs.values():
                run.end()
            self.node = None
            self.disk.end_process("node")
        folder = self.home if where == "home" or not self.bucket else self.folder
        self.keeps["home" if folder == self.home else "node"].clear()
        if not self.bucket:
            self.keeps.clear()
        self.disk.power_cut(folder)
        self.done["power cuts"] += 1

    def trouble(self, kind: str, chance: float, below: str = "") -> None:
        """Let the disk refuse from now on, everywhere or below a folder."""
        code, operations, draw = CODES.get(kind, errno.EIO), REFUSED[kind], self.random

        def fault(operation: str, path: str) -> int | None:
            return code if operation in operations and below in path and draw.random() < chance else None

        self.disk.fault = fault
        self.done[kind] += 1

    def cut(self, chance: float, kinds: tuple[str, ...] = TROUBLES) -> None:
        """Let the network fail from now on, and the channel."""
        self.objects.kinds, self.objects.chance = kinds, chance
        self.phone.chance = chance
        self.done["cuts"] += 1

    @contextmanager
    def _refusing(self, how: str) -> Iterator[None]:
        """Let the disk refuse while the block runs: ``KIND CHANCE``, or nothing."""
        before = self.disk.fault
        if how:
            kind, chance = how.split()[:2]
            self.trouble(kind, float(chance))
        try:
            yield
        finally:
            self.disk.fault = before

    def heal(self) -> None:
        """Let disk and network work again."""
        self.disk.fault, self.disk.kill_in = None, None
        self.objects.kinds, self.phone.chance = (), 0.0

    def skew(self, where: str, seconds: float) -> None:
        """Set the wall clock of a machine; that of a trainer goes ahead only, as the order of its attempts hangs on it."""
        before = self.clock.ahead.get(where, 0.0)
        self.clock.ahead[where] = seconds if where == "home" else before + abs(seconds)
        self.done["skewed clocks"] += 1

    def harm(self, number: int) -> None:
        """Let the disk refuse the folders of one run: every other run's records come through."""
        run, others = self.run(number), [each for each in self.runs.values() if not each.deleted]
        self.heal()
        self.serve(*TICK)
        self.ship()
        self.clock.up += 120.0
        self.trouble("broken", 1.0, below=f"/{run_dir(Path(), run.name).name}/")
        self.serve(*TICK, *TICK, *MINUTE)
        self.disk.fault = None
        assert self.life is not None, "one run's folder keeps the service from starting"
        for other in others:
            if other is not run and other.deleted != "asked":
                with self.on("home"):
                    found = {
                        row["sample_id"]
                        for row in self._rows("SELECT sample_id FROM all_sequences WHERE run = $run", other)
                    }
                frozen = self._frozen(other)
                wanted = {
                    each.sample
                    for each in other.sequences.values()
                    if each.trained and self._is_wanted(other, each, frozen)
                }
                assert wanted <= found, f"{other.name}: {sorted(wanted - found)} wait for {run.name}"
        self.done["harmed"] += 1

    def dying(self, stage: str, *jobs: str) -> None:
        """Let jobs have their turns; the service is killed when a message is arriving, or has arrived."""

        def kill(at: str) -> None:
            if at == stage:
                self.disk.kill_in = 0
                self.disk.step("message", at)

        self.phone.at = kill
        self.serve(*jobs)
        self.phone.at = lambda at: None

    def copy(self, seed: int) -> None:
        """Bring a segment once more, under its name or another number."""
        if self.copies:
            draw = Random(seed)
            path, content = draw.choice(self.copies)
            name = path.name if draw.random() < 0.5 else f"{draw.randrange(10**7, 10**8):08d}{path.name[8:]}"
            place = self.folder / path.with_name(name)
            with self.disk.aside():
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.exists():
                    place.write_bytes(content)
            self.done["copies"] += 1

    def plant(self, number: int, seed: int) -> None:
        """Lay a damaged or a foreign file among a run's in the archive."""
        draw, top = Random(seed), self.home / "archive"
        run = top / run_dir(self.home, self.run(number).name).name
        with self.disk.aside():  # whoever lays it there has a disk that works
            whole = [path.read_bytes() for path in sorted(run.rglob("*.parquet"))]
        if not whole:
            return
        content, name = draw.choice(whole), f"{draw.getrandbits(128):032x}.parquet"
        at = draw.randrange(len(content))
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        some = [("notes.txt", b"mine"), (f"{name}.orig", content), (name, b"PAR1 of somebody PAR1"), (name, damaged)]
        # A bucket keeps segments for as long as a file with such a name is not in order.
        name, content = draw.choice(some[:2] if self.bucket else some)
        place = run / draw.choice(["training", "sequences"]) / name
        with self.disk.aside():
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
            for folder in (place.parent, run, top):  # a power cut takes along what lies in a folder that is not durable
                files.DISK.sync(folder)
        self.foreign[place] = content
        self.done["foreign files"] += 1

    def keep_index(self) -> None:
        """Keep what the store is now, for `older_index`."""
        self.restart()
        with self.disk.aside():
            self.kept_index = {path.name: path.read_bytes() for path in self.home.glob("logprobe.duckdb*")}

    def older_index(self) -> None:
        """Put the store back that was kept, as from a backup: users' commands since then are not known."""
        if self.kept_index is None:
            return
        self.lose_index()
        self._forgotten()
        with self.disk.aside():
            for name, content in self.kept_index.items():
                (self.home / name).write_bytes(content)
        self.done["older indexes"] += 1

    def elsewhere(self, *, theirs: bool) -> None:
        """Work for a while with no folder mounted as the archive, or another home's: nothing is touched."""
        place, kept = self.home / "archive", self.home / "kept"
        if not (place / "!home").exists() or not (self.home / "archive.id").exists():
            return  # a data directory that knows of no archive begins one in any empty folder
        self.heal()
        self.lose_service()
        self.clock.up += 120.0
        with self.disk.aside():
            place.rename(kept)
            place.mkdir()
            if theirs:
                (place / "!home").write_text("0" * 32)
        before, spooled = _contents(place), _contents(self.home / "spool")
        objects = {name for name in self.objects.objects if name.startswith("archive/")}
        self.mistaken = True
        self.serve(*TICK, *MINUTE, *TICK, *MINUTE)
        self.mistaken = False
        self.lose_service()
        now = {
            path: content for path, content in _contents(place).items() if "/!" not in path
        }  # but for names of its own
        left = {path for path, content in now.items() if before.get(path) != content}
        assert not left, f"{left} were written to another folder"
        assert spooled.items() <= _contents(self.home / "spool").items(), "segments went without an archive"
        assert objects <= self.objects.objects.keys(), "objects went while the archive was not there"
        with self.disk.aside():
            self.disk.wipe(place)
            kept.rename(place)
            files.DISK.sync(self.home)
        self.done["elsewhere"] += 1

    def lose_index(self, *, journal: bool = False) -> None:
        """Delete the store while no service runs, or what users and the controller did with it."""
        self.lose_service()
        with self.disk.aside():
            for path in self.home.glob("logprobe.duckdb*"):
                path.unlink()
            if journal and self.home.exists():
                (self.home / "journal.jsonl").unlink(missing_ok=True)
        if journal:
            self._forgotten()
        self.done["lost indexes"] += 1

    def _forgotten(self) -> None:
        """Messages may be sent again, and modes are not known: their journal is lost, or some of it."""
        self.phone.arrived.clear()
        self.silences.clear()
        for run in self.runs.values():
            run.mode = None

    def lose_home(self) -> None:
        """Lose the service's machine; what is in the bucket is what there is."""
        self.lose_service()
        if self.bucket and self.home.exists():
            for run in self.runs.values():  # users' actions of the last minute may be lost
                told = f"{DELETED}{run_dir(self.home, run.name).name}.json" in self.objects.objects
                run.deleted = "asked" if run.deleted and not told else run.deleted
            self.disk.wipe(self.home)
            self.foreign.clear()
            self.kept_index = None
            self._forgotten()
            self.done["lost homes"] += 1

    def retire(self, kill: int | None = None) -> None:
        """Keep no tokens: they become statistics per sequence."""
        for run in self.runs.values():  # an engine's record that comes later finds no tokens to compare with
            for each in run.sequences.values():
                each.gone = True
        self.policy = RetentionPolicy(max_bytes=0)
        self.restart()
        self.serve(*MINUTE, kill=kill)
        self.policy = RetentionPolicy()
        self.restart()
        self.done["retired"] += 1

    def freeze(self, kill: int | None = None) -> None:
        """Freeze all steps but the newest of each run; they keep the numbers that they have now."""
        self.check()
        kept = {run.name: self._whole(run, self._frozen(run)) for run in self.runs.values() if not run.deleted}
        with self.on("home"), self._killing(kill, self.lose_service, "freeze"):
            Freezer(self.store, StoreBudget(0), protected=2, quiet=timedelta(0)).run_once()
        self.serve(*TICK)  # a new life takes in what the killed one has put into files
        for run in self.runs.values():
            for step in kept.get(run.name, {}).keys() & self._frozen(run):
                run.frozen[step] = kept[run.name][step]
                run.frozen_in[step] = run.attempts
            for each in run.sequences.values():  # of what no trainer used, engine's records go with steps around it
                each.forgotten |= each.step <= max(self._frozen(run), default=-1)
        self.done["frozen"] += 1

    def restart(self) -> None:
        """End the service in order."""
        life, self.life = self.life, None
        if life is not None:
            with self.on("home"):
                try:
                    life.close()
                except (LogprobeError, OSError) as error:
                    self._require_trouble(error)

    def spoil(self, number: int, seed: int) -> None:
        """Put into a run's folder what is no segment of it."""
        draw = Random(seed)
        folder = run_dir(self.home, self.run(number).name) / "w"
        kind = draw.choice(["training", "rollout"])
        name = draw.choice(["notes.txt", f"{draw.randrange(99):08d}.{kind}.1234abcd.arrow"])
        with self.disk.aside():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(draw.randbytes(draw.randrange(200)))
        self.done["spoiled"] += 1

    # --- What must hold

    def settle(self) -> None:
        """Heal everything and work off what there is."""
        self.heal()
        for _ in range(ROUNDS):
            self.ship()
            kills = self.done["kills"]
            self.serve(*TICK, *MINUTE)
            if self.done["kills"] > kills:  # the kill to come has come here
                continue
            assert self.life is not None, "no start in a healthy world"
            if not (waiting := list(self._waiting())):
                break
            self.clock.up += 120.0
        else:
            raise AssertionError(f"on a healthy disk there waits {waiting}")

    def _waiting(self) -> Iterator[str]:
        """List the segments that are in no file of the archive, or not in the bucket's."""
        for folder in {self.home, self.folder}:
            yield from map(str, (folder / "spool").rglob("*.arrow"))
        yield from (name for name in self.objects.objects if name.startswith("spool/"))

    def check(self, *, look: bool = False) -> None:
        """Heal, and compare all that there is with what was acknowledged."""
        self.settle()
        if look:
            self.clock.up += 10.0
            self.serve(*LOOK, *LOOK)
        with self.on("home"):
            for run in self.runs.values():
                if run.deleted == "asked":  # the answer was lost: one of both
                    run.deleted = "confirmed" if run.name in self.store.archive.tombstones else ""
                self._deleted(run) if run.deleted else self._kept(run)
            self.nothing_of_the_deleted()
            self._messages()
            self._files()
        self.done["checks"] += 1

    @property
    def store(self) -> Store:
        """Store of the service that runs."""
        assert self.life is not None
        assert self.life.store is not None
        return self.life.store

    def _rows(self, sql: str, run: Run) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.store.query(sql, {"run": run.name}).to_pylist()
        return rows

    def nothing_of_the_deleted(self) -> None:
        """See that no row is there of a run that was deleted, though much may wait to be removed."""
        if self.life is None:  # it was killed on its way here
            self.serve()
        for run in self.runs.values():
            for table in ("all_sequences", "step_metrics", "segments", "raw_files", "alert_states"):
                found = run.deleted == "confirmed" and self._rows(f"SELECT 1 FROM {table} WHERE run = $run", run)
                assert not found, f"{run.name} is deleted, and in {table}"

    def _deleted(self, run: Run) -> None:
        name = run_dir(self.home, run.name).name
        found = [path for top in ("spool", "archive") for path in (self.home / top / name).rglob("*") if path.is_file()]
        left = set(found) - self.foreign.keys()
        assert not left, f"{run.name} is deleted, and there are {left}"

    def _frozen(self, run: Run) -> set[int]:
        return {
            row["step"]
            for row in self._rows("SELECT step FROM step_summaries WHERE run = $run AND frozen_at IS NOT NULL", run)
        }

    def _is_wanted(self, run: Run, each: Sequence, frozen: set[int]) -> bool:
        """Tell whether a sequence is in the store once it was acknowledged: it, not its step's frozen numbers."""
        return each.step not in frozen and each.attempt > run.frozen_in.get(each.step, 0)

    def _kept(self, run: Run) -> None:
        frozen = self._frozen(run)
        rows = self._rows("SELECT step, sample_id, rollout_source FROM all_sequences WHERE run = $run", run)
        found = Counter(row["sample_id"] for row in rows)
        twice = [sample for sample, count in found.items() if count > 1]
        assert not twice, f"{run.name}: counted twice {twice}"
        trained = {
            each.sample for each in run.sequences.values() if each.trained and self._is_wanted(run, each, frozen)
        }
        assert trained <= found.keys(), f"{run.name}: lost {sorted(trained - found.keys())}"
        assert found.keys() <= run.sequences.keys(), f"{run.name}: never recorded {found.keys() - run.sequences.keys()}"
        self._sampled(run, rows, frozen)
        self._tokens(run, trained)
        self._archived(run)
        self._trusted(run)
        self._numbers(run, frozen)
        self._judged(run)
        scalars = Counter(row["step"] for row in self._rows("SELECT step FROM all_step_records WHERE run = $run", run))
        assert all(scalars[step] <= run.scalars[step] for step in scalars), (
            f"{run.name}: scalars of {scalars} are doubled"
        )

    def _trusted(self, run: Run) -> None:
        """See that the service has trusted all that a collector has written."""
        rows = [] if self.done["spoiled"] else self._rows("SELECT origin, reason FROM quarantine WHERE run = $run", run)
        assert not rows, f"{run.name}: in quarantine {rows}"

    def _tokens(self, run: Run, trained: set[str]) -> None:
        """Compare what users read of the archive's files with what was handed over, bit by bit."""
        sql = "SELECT sample_id, token_ids, mask, trainer_logprobs, rollout_logprobs FROM raw_training WHERE run = $run"
        rows = self._rows(sql, run)
        found = Counter(row["sample_id"] for row in rows)
        twice = [sample for sample, count in found.items() if count > 1]
        assert not twice, f"{run.name}: tokens are there twice of {twice}"
        lost = {sample for sample in trained - found.keys() if not run.sequences[sample].gone}
        assert not lost, f"{run.name}: tokens are lost of {sorted(lost)}"
        for row in rows:
            each = run.sequences[row["sample_id"]]
            mask = [True] * len(each.ids) if row["mask"] is None else row["mask"]
            pairs = [(row["token_ids"], each.ids), (mask, each.mask), (row["trainer_logprobs"], each.trainer)]
            if run.received:
                pairs.append((row["rollout_logprobs"], each.rollout))
            for is_, value in pairs:
                same = np.array_equal(np.asarray(is_, value.dtype), value, equal_nan=value.dtype == np.float32)
                assert same, f"{run.name}: {each.sample} has {is_}, not {value}"

    def _archived(self, run: Run) -> None:
        """Compare the files that the store lists with those of the archive: each segment once in a tier."""
        archive = self.store.archive._archive
        files_ = archive.files(run.name)
        listed = {row["path"] for row in self._rows("SELECT path FROM raw_files WHERE run = $run", run)}
        assert listed == {f"archive/{each.path}" for each in files_}, f"{run.name}: {listed} are listed"
        held = Counter((each.kind, segment) for each in files_ for segment in each.segments)
        twice = [segment for segment, count in held.items() if count > 1]
        assert not twice, f"{run.name}: in two files {twice}"

    def _unfinished(self) -> set[Path]:
        """List what a process had begun to write; none where the disk may refuse to remove it."""
        tops = () if self.disk.fault else ("archive", "deleted")
        return {path for top in tops for path in (self.home / top).rglob(".*.tmp")}

    def _files(self) -> None:
        left = {path for path in self.unfinished if path.exists()}
        assert not left, f"{left} were left by a start"
        gone = {run_dir(self.home, run.name).name for run in self.runs.values() if run.deleted}
        for path, content in self.foreign.items():
            is_erased = path.parent.parent.name in gone and NAME.fullmatch(path.name)  # by its name it was the run's
            if not is_erased:
                assert path.exists(), f"{path} was not the archive's, and is gone"
                assert path.read_bytes() == content, f"{path} was not the archive's, and was changed"

    def _sampled(self, run: Run, rows: list[dict[str, Any]], frozen: set[int]) -> None:
        sql = "SELECT sample_id FROM rollout_sequences WHERE run = $run AND parts IS NULL"
        sampled = Counter(row["sample_id"] for row in self._rows(sql, run))
        twice = [sample for sample, count in sampled.items() if count > 1]
        assert not twice, f"{run.name}: sampled twice {twice}"
        wanted = (each for each in run.sequences.values() if self._is_wanted(run, each, frozen))
        said = {each.sample for each in wanted if each.sampled and not each.forgotten}
        assert said <= sampled.keys(), f"{run.name}: lost of the engine {sorted(said - sampled.keys())}"
        for row in rows:
            known = row["sample_id"] in sampled or run.received
            joined = row["rollout_source"] in {"joined", "received"}
            each = run.sequences[row["sample_id"]]
            assert joined == known or each.gone or each.forgotten, f"{run.name}: {row}"
            run.was_sick |= not joined  # what an engine's recorder has lost is missing, and that is said

    def _whole(self, run: Run, frozen: set[int]) -> dict[int, dict[str, float | None]]:
        """Return the numbers that steps should have, of the sequences that the store has; not of frozen ones, of which
        it has those of older attempts at most."""
        rows = self._rows("SELECT step, sample_id, rollout_source FROM all_sequences WHERE run = $run", run)
        of_step: dict[int, list[tuple[Sequence, bool]]] = defaultdict(list)
        for row in rows:
            each = run.sequences[row["sample_id"]]
            assert each.step == row["step"], f"{run.name}: {row}"
            of_step[each.step].append((each, row["rollout_source"] != "missing"))
        newest = {step: max(each.attempt for each, _ in some) for step, some in of_step.items()}
        return {
            step: oracle([(each, known) for each, known in some if each.attempt == newest[step]])
            for step, some in of_step.items()
            if step not in frozen
        }

    def _numbers(self, run: Run, frozen: set[int]) -> None:
        stored: dict[int, dict[str, float | None]] = defaultdict(dict)
        for row in self._rows("SELECT step, metric, value FROM step_metrics WHERE run = $run", run):
            assert row["metric"] not in stored[row["step"]], f"{run.name}: step {row['step']} has {row['metric']} twice"
            stored[row["step"]][row["metric"]] = row["value"]
        wanted = self._whole(run, frozen)
        sql = "SELECT step FROM training_sequences WHERE run = $run"  # of the attempt that counts
        both = frozen & {row["step"] for row in self._rows(sql, run)}
        assert not both, f"{run.name}: {both} are frozen, and have sequences"
        assert frozen <= run.frozen.keys(), f"{run.name}: {frozen - run.frozen.keys()} are frozen by no one"
        for step, numbers in (wanted | {step: run.frozen[step] for step in frozen}).items():
            for key, value in numbers.items():
                is_ = stored[step].get(key)
                assert _same(is_, value), f"{run.name}: step {step} has {key} {is_}, not {value}"

    def _judged(self, run: Run) -> None:
        for row in self._rows("SELECT rule, phase, severity, words FROM alert_states WHERE run = $run", run):
            fires = row["rule"] in {"judgement", HIGH} and row["phase"] != "normal"
            assert run.was_sick or not fires, f"{run.name}: {row}"
        rows = self._rows("SELECT control FROM controllers WHERE run = $run", run)
        assert rows or run.mode is None, f"{run.name}: a user said {run.mode}, and nothing is known"
        silent = {
            row["id"]
            for row in self._rows("SELECT key AS id FROM user_actions WHERE action = 'silenced' AND runs = $run", run)
        }
        forgotten = {name for name, of in self.silences.items() if of == run.name} - silent
        assert not forgotten, f"{run.name}: silences are forgotten: {forgotten}"
        for row in rows:
            control = json.loads(row["control"])
            if control["phase"] == "applied":
                wanted = CorrectionConfig.from_dict(control["config"]).fingerprint()
                stated = {step for step, fingerprint in run.applied if fingerprint == wanted}
                assert any(step >= control["from_step"] for step in stated), f"{run.name}: applied, which no one said"
            assert run.mode in {None, control["mode"]}, f"{run.name}: {control['mode']}, and a user said {run.mode}"
        if run.switch is not None:
            problems = run.switch.health["problems"]
            assert "directive_refused" not in problems, f"{run.name}: {run.switch.health['last_error']}"

    def _messages(self) -> None:
        twice = [key for key, count in Counter(note.key for note in self.phone.arrived).items() if count > 1]
        assert not twice, f"sent twice: {twice}"
        sent = self.store.query("SELECT key FROM deliveries WHERE status = 'sent'")["key"].to_pylist()
        assert set(sent) <= self.phone.ever, f"said to be sent: {set(sent) - self.phone.ever}"
        states: dict[tuple[str, str], str] = {}
        for note in self.phone.arrived:
            place = note.run, note.rule
            assert note.rule not in {"judgement", HIGH} or self.runs[note.run].was_sick, f"a healthy run: {note}"
            if note.state in {"firing", "resolved"} and note.rule in {"judgement", "liveness", HIGH}:
                assert states.get(place) != note.state, f"{place} is {note.state} twice: {note.summary}"
                states[place] = note.state


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
