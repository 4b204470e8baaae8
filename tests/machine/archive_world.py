"""One home, its writers, its service and its faults, on a simulated disk: a seed is a history that can be replayed.

What was acknowledged is remembered beside the disk. After every fault the service starts again on a healthy disk, and
everything that was acknowledged must be there once, in every bit; what was deleted must be nowhere.
"""

from __future__ import annotations

import copy
import errno
import random
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from model_service import KEYS, MemoryIndex, Service, metrics
from simulated_disk import Kill, SimulatedDisk

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import RunDeletedError, StoreError
from logprobe.collectors.spool.schema import SCHEMAS, segment_metadata
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.store import archive
from logprobe.monitor.store.archive_file import SEQUENCES
from logprobe.monitor.store.journal import latest
from logprobe.monitor.store.raw_files import NAME

HOME = Path("/home")
WRITERS = ("trainer", "engine")
SERVICE = {"tick": 8, "minute": 6, "compact": 2, "reduce": 2, "freeze": 1, "act": 2, "send": 2, "delete": 0.3}
FAULTS: dict[str, tuple[tuple[str, ...], int, float]] = {
    "full disk": (("write", "append", "mkdir", "create"), errno.ENOSPC, 0.7),
    "read-only": (("create", "write", "append", "truncate", "rename", "unlink", "mkdir", "rmdir"), errno.EROFS, 1.0),
    "EIO on read": (("read", "names", "size"), errno.EIO, 0.2),
    "EIO on write": (("create", "write", "fsync", "append", "truncate", "rename", "unlink", "mkdir"), errno.EIO, 0.2),
}


class FakeTime(Time):
    """A clock that goes on at each look, and is set now and then."""

    def __init__(self) -> None:
        self.shown = 1.8e9
        self.up = 0.0

    def wall(self) -> float:
        self.shown += 0.001
        return self.shown

    def monotonic(self) -> float:
        self.up += 0.001
        return self.up


def segment_bytes(run: str, writer: str, number: int, rows: list[tuple[int, str, float]]) -> tuple[str, bytes]:
    """Return the name and the bytes of a segment as a collector writes them."""
    columns = {
        name: pa.nulls(len(rows), each.type)
        for name, each in zip(SCHEMAS["training"].names, SCHEMAS["training"], strict=True)
    }
    columns["step"] = pa.array([step for step, _, _ in rows], pa.int64())
    columns["sample_id"] = pa.array([sample for _, sample, _ in rows])
    columns["token_ids"] = pa.array([[1]] * len(rows), pa.list_(pa.int32()))
    columns["rollout_logprobs"] = pa.array([[value] for _, _, value in rows], pa.list_(pa.float32()))
    metadata = segment_metadata(kind="training", run=run, writer=writer, number=number)
    table = pa.table(columns, SCHEMAS["training"].with_metadata(metadata))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    content = sink.getvalue().to_pybytes()
    return f"{number:08d}.training.{zlib.crc32(content):08x}.arrow", content


class World:
    """A history. `step` does one random thing; `check` says what is wrong with what is there."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.time = FakeTime()
        self.index = MemoryIndex()
        self.older = copy.deepcopy(self.index)
        self.service: Service | None = None
        self.acknowledged: dict[str, dict[str, tuple[int, float]]] = {}
        self.doubtful: dict[str, dict[str, tuple[int, float]]] = {}
        self.frozen: dict[tuple[str, int], set[float]] = {}  # values that a step may have been frozen with
        self.deleted: dict[str, bool] = {}  # run → whether that was confirmed
        self.said: dict[tuple[str, tuple[object, ...]], dict[str, object]] = {}
        self.unsure: dict[tuple[str, tuple[object, ...]], list[dict[str, object]]] = {}
        self.sends: list[str] = []
        self.sent: set[str] = set()
        self.foreign: dict[Path, bytes] = {}
        self.written: list[tuple[Path, bytes]] = []
        self.numbers = dict.fromkeys(WRITERS, 0)
        self.generation = 0  # runs have names of their own: one of a deleted run is not used again
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    # The machine

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Give everything that draws a name the seed of the world."""
        draw = lambda: uuid.UUID(int=self.random.getrandbits(128), version=4)
        with patch("uuid.uuid4", draw):
            yield

    def run(self, steps: int) -> None:
        with self.seeded():
            for _ in range(steps):
                self.step()
            self.restart()
            self.check()

    def step(self) -> None:
        doings: list[tuple[float, Callable[[], None]]] = [
            (8, self.write),
            (12, lambda: self.serve(self._anything())),
            (1, self.resend),
            (0.3, self.plant),
            (2, self.kill),
            (1, self.power_cut),
            (0.8, self.faulty),
            (0.6, self.lose_index),
            (0.2, self.elsewhere),
        ]
        self.random.choices([doing for _, doing in doings], [weight for weight, _ in doings])[0]()

    def restart(self) -> None:
        self.disk.fault = lambda operation, path: None
        self.disk.kill_in = None
        try:
            self._start()
        except StoreError as error:
            self.problems.append(f"no start on a healthy disk: {error}")

    def _start(self) -> None:
        """Begin a process, which knows nothing but what is on the disk."""
        self.disk.durable_folders.clear()
        self.service = Service(HOME, self.index, self.disk, self.time, self.sends)
        self.service.done = self.done
        self.service.start()

    # Writers

    def write(self) -> None:
        run = f"run{self.random.randrange(3)}-{self.generation}"
        rows = [
            (
                self.random.randrange(6),
                f"s{self.random.getrandbits(48):012x}",
                float(np.float32(self.random.gauss(0, 1))),
            )
            for _ in range(self.random.randrange(1, 4))
        ]
        writer = self.random.choice(WRITERS)
        self.numbers[writer] += 1
        name, content = segment_bytes(run, writer, self.numbers[writer], rows)
        path = run_dir(HOME, run) / writer / name
        self.disk.plant(path, content)
        self.written.append((path, content))
        self.acknowledged.setdefault(run, {}).update({sample: (step, value) for step, sample, value in rows})
        self.done["segments"] += 1

    def resend(self) -> None:
        """Bring a segment again, under its name or another number."""
        if self.written:
            path, content = self.random.choice(self.written)
            name = (
                path.name if self.random.random() < 0.5 else f"{self.random.randrange(10**7, 10**8):08d}{path.name[8:]}"
            )
            self.disk.plant(path.with_name(name), content)
            self.done["resent"] += 1

    # The service

    def serve(self, what: str) -> None:
        """Have the service do something; it may be killed, or refused, in the middle."""
        if self.service is None:
            self.restart()
        assert self.service is not None
        try:
            getattr(self, f"_{what}")(self.service)
        except RunDeletedError:
            self.done["refused for a deleted run"] += 1
        except (OSError, StoreError):
            if self.disk.faults == 0:
                raise
            self.done["refused"] += 1

    def _any(self) -> str:
        return f"run{self.random.randrange(3)}-{self.generation}"

    def _tick(self, service: Service) -> None:
        service.tick()

    def _minute(self, service: Service) -> None:
        service.minute()

    def _compact(self, service: Service) -> None:
        with patch.object(archive, "SMALL_FILES", 2):
            service.compact(self._any())

    def _reduce(self, service: Service) -> None:
        service.reduce(self._any(), self.random.randrange(1, 4))

    def _freeze(self, service: Service) -> None:
        run = self._any()
        for step, value in metrics(self.index.numbers(run), range(6)).items():
            self.frozen.setdefault((run, step), set()).add(value)
        service.freeze(run, self.random.randrange(1, 3))

    def _act(self, service: Service) -> None:
        kind = self.random.choice(["silence", "accept", "correction"])
        (key,) = KEYS[kind]
        what: dict[str, object] = {key: f"{key}{self.random.randrange(5)}", "value": self.random.random()}
        place = kind, (what[key],)
        self.unsure.setdefault(place, []).append(what)
        service.act(kind, what)
        self.said[place], self.unsure[place] = what, []
        self.done["acted"] += 1

    def _send(self, service: Service) -> None:
        key = f"m{self.random.randrange(40)}"
        service.send(key)
        if key in self.sends:
            self.sent.add(key)

    def _delete(self, service: Service) -> None:
        run = self._any()
        self.deleted.setdefault(run, False)
        try:
            service.delete(run)
            self.deleted[run] = True
            self.done["deleted runs"] += 1
        finally:
            if run in self.deleted:
                self.generation += 1

    def _anything(self) -> str:
        """Draw what the service does next."""
        return self.random.choices(list(SERVICE), list(SERVICE.values()))[0]

    # Faults

    def kill(self) -> None:
        """Kill the service at a random operation of whatever it does next."""
        if self.random.random() < 0.2:
            self.service = None  # and in the middle of its start
        self.disk.kill_in = self.random.choice([self.random.randrange(6), self.random.randrange(60)])
        try:
            if self.service is None:
                self._start()
            for _ in range(20):
                self.serve(self._anything())
        except Kill as killed:
            self.done["kills"] += 1
            self.done[f"killed at {killed.args[0]}"] += 1
        self.disk.kill_in = None
        self.restart()
        self.check()

    def power_cut(self) -> None:
        self.disk.kill_in = self.random.randrange(40)
        try:
            for _ in range(20):
                self.serve(self._anything())
        except Kill:
            pass
        self.disk.kill_in = None
        self.disk.power_cut()
        self.done["power cuts"] += 1
        self.restart()
        self.check()

    def faulty(self) -> None:
        """Let the disk refuse for a while, over a start as well, with a kill or a power cut at the end."""
        name = self.random.choice(list(FAULTS))
        operations, code, chance = FAULTS[name]
        self.disk.fault = lambda operation, path: (
            code if operation in operations and self.random.random() < chance else None
        )
        before = self.disk.faults
        if self.random.random() < 0.5:
            try:
                self._start()
            except (OSError, StoreError):
                self.service = None
        for _ in range(self.random.randrange(1, 15)):
            if self.service is not None:
                self.serve(self._anything())
        self.done[name] += self.disk.faults > before
        self.disk.fault = lambda operation, path: None
        if self.service is not None and self.random.random() < 0.5:  # it continues
            self.serve("tick")
            self.serve("minute")
            self.check(restarted=False)
        if self.random.random() < 0.3:
            self.disk.power_cut()
            self.done["power cuts"] += 1
        self.restart()
        self.check()

    def lose_index(self) -> None:
        """Delete the index, or take an older one, as after a torn log."""
        if self.random.random() < 0.7:
            self.index = MemoryIndex()
            self.done["deleted indexes"] += 1
        else:
            self.index = copy.deepcopy(self.older)
            self.done["older indexes"] += 1
        self.older = copy.deepcopy(self.index)
        self.restart()
        self.check()

    def plant(self) -> None:
        """Lay a damaged or a foreign file among those of a run."""
        if not self.done["checks"]:  # before the first start the folder is no one's
            return
        run = run_dir(HOME, self._any()).name
        whole = [
            path
            for path in self.disk.everything()
            if path.startswith(f"/home/archive/{run}/") and path.endswith(".parquet")
        ]
        content = self.disk.content(Path(self.random.choice(sorted(whole)))) if whole else None
        name = f"{self.random.getrandbits(128):032x}.parquet"
        if content and self.random.random() < 0.5:
            at = self.random.randrange(len(content))
            content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            self.done["damaged files"] += 1
        else:
            name, content = self.random.choice(
                [(name, b"PAR1 of somebody PAR1"), ("notes.txt", b"mine"), (f"{name}.orig", b"x")]
            )
            self.done["foreign files"] += 1
        path = HOME / "archive" / run / self.random.choice(["training", SEQUENCES]) / name
        self.foreign[path] = content
        self.disk.plant(path, content)

    def elsewhere(self) -> None:
        """Start with the folder of another home, or none, in place of ours: nothing may be touched."""
        home = self.disk.root.names.get("home")
        folder = home.names.get("archive") if home else None
        if folder is None or not self.done["checks"]:
            return
        mark = Path("/home/archive/!home")
        if self.random.random() < 0.5:
            del home.names["archive"]
            self.done["unmounted folders"] += 1
        else:
            del home.names["archive"]
            self.disk.plant(mark, uuid.uuid4().hex.encode())
            self.disk.plant(Path("/home/archive/run0-0/training") / f"{0:032x}.parquet", b"theirs")
            self.done["folders of other homes"] += 1
        before = self.disk.everything()
        index = MemoryIndex() if self.random.random() < 0.5 else self.index
        try:
            Service(HOME, index, self.disk, self.time, self.sends).start()
        except StoreError:
            pass
        else:
            self.problems.append("a start with another folder")
        if self.disk.everything() != before:
            self.problems.append("another folder was touched")
        home.names["archive"] = home.durable["archive"] = folder
        self.restart()
        self.check()

    # What must hold

    def check(self, *, restarted: bool = True) -> None:
        """Let the service take in and merge everything, then compare all that there is with what was acknowledged."""
        assert self.service is not None
        self.service.tick()
        waiting = self.service.minute()
        self._expect(not waiting, f"on a healthy disk there waits {waiting}")
        self._expect(not self.service.refused, f"refused {self.service.refused[:1]}")
        for run in sorted({*self.acknowledged, *self.index.runs()}):
            self._check_run(run, self.service)
        self._check_files(self.service, restarted)
        self._check_journal(self.service)
        if self.random.random() < 0.2:
            self.older = copy.deepcopy(self.index)
        self.done["checks"] += 1

    def _expect(self, truth: bool, problem: str) -> None:
        if not truth:
            self.problems.append(f"after {dict(self.done)}: {problem}")

    def _check_run(self, run: str, service: Service) -> None:
        is_deleted = run in service.tombstones
        self._expect(is_deleted or not self.deleted.get(run), f"{run} was deleted, and is there again")
        self._expect(not is_deleted or run in self.deleted, f"{run} is deleted, and nobody asked for it")
        numbers, frozen = self.index.numbers(run), self.index.frozen(run)
        if is_deleted:
            self._expect(
                not numbers and not frozen and run not in self.index.runs(), f"{run} has rows after its deletion"
            )
            return
        wanted = {s: (step, value) for s, (step, value) in self.acknowledged.get(run, {}).items() if step not in frozen}
        found = Counter(sample for _, sample, _ in numbers)
        self._expect(
            all(count == 1 for count in found.values()), f"{run}: counted twice {[s for s in found if found[s] > 1]}"
        )
        self._expect(
            found.keys() == wanted.keys(),
            f"{run}: lost {wanted.keys() - found.keys()}, new {found.keys() - wanted.keys()}",
        )
        self._expect(all(wanted.get(s) == (step, value) for step, s, value in numbers), f"{run}: other numbers")
        for step, value in frozen.items():
            self._expect(value in self.frozen[run, step], f"{run}: step {step} frozen with {value}")

    def _check_files(self, service: Service, restarted: bool) -> None:
        files = self.disk.everything()
        archived = {f"/home/archive/{path}" for path in service.archive.left}
        gone = {run_dir(HOME, run).name for run in self.deleted if run in service.tombstones}
        for path, content in self.foreign.items():
            as_ours = path.parts[3] in gone and NAME.fullmatch(path.name)  # by its name it was the deleted run's
            self._expect(files.get(str(path)) in ({content, None} if as_ours else {content}), f"{path} was changed")
        self._expect(
            archived <= {str(path) for path in self.foreign}, f"left {archived - {str(path) for path in self.foreign}}"
        )
        for path in files:
            parts = path.split("/")
            ours = len(parts) > 3 and Path(path) not in self.foreign
            self._expect(
                not (ours and parts[3] in gone and parts[2] in {"spool", "archive"}), f"{path} of a deleted run"
            )
            self._expect(not restarted or not path.endswith(".tmp"), f"{path} is left")
            self._expect(not path.startswith("/home/spool/"), f"{path} is in no file")
        for run in self.acknowledged:
            if run not in service.tombstones:
                held = Counter((file.tier, each) for file in service.archive.files(run) for each in file.segments)
                self._expect(all(count == 1 for count in held.values()), f"{run}: a segment is in two files")
                listed = {file.path for file in service.archive.files(run)}
                known = {path for path in self.index.files() if path.startswith(f"{run_dir(HOME, run).name}/")}
                self._expect(listed == known, f"{run}: files {listed ^ known} are not as listed")

    def _check_journal(self, service: Service) -> None:
        known = latest(service.said, KEYS)
        for place, what in self.said.items():
            entry = known[place[0]].get(place[1])
            may_be = [what, *self.unsure.get(place, [])]
            self._expect(entry is not None and entry.what in may_be, f"{place} is forgotten: {entry}")
        twice = [key for key, count in Counter(self.sends).items() if count > 1]
        self._expect(not twice, f"messages were sent twice: {twice}")
        self._expect(self.sent <= set(self.sends), "a message was not sent")
        self._expect(not service.journal.damaged, "the journal is damaged")
