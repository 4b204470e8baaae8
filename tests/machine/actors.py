"""Who works in the machine's world: collectors, a node's shipper and a service, each driven by hand in one thread."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import duckdb
import numpy as np
from lossy_network import Objects, Phone
from power_disk import MachineDisk

from logprobe.alerts.sending import actions as sending
from logprobe.alerts.sending import delivery
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.delivery import Deadline
from logprobe.app.processes.service import _parts
from logprobe.collectors import switch
from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.health import Guard
from logprobe.collectors.recorder import runtime
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.shipping import bucket, shipper
from logprobe.collectors.shipping.bucket import Bucket, BucketPlace
from logprobe.collectors.shipping.control import Follower
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.home import Home
from logprobe.monitor.live import ingest
from logprobe.monitor.service.service import Service
from logprobe.monitor.shipped import mirror, pulling
from logprobe.monitor.shipped import part as shipped_part
from logprobe.monitor.store import archive, retention, schema
from logprobe.monitor.store import store as store_module
from logprobe.monitor.store.retention import RetentionPolicy
from logprobe.monitor.store.store import Store

ADDRESS = "s3://bucket/world"
TIMES = ("time", "time_ns", "monotonic", "thread_time", "sleep")
POOLS = (archive, delivery, ingest, mirror, pulling, shipper)


class Clock:
    """The clocks of all machines: one that goes on at each look, and what a machine's wall clock is ahead."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.up = 0.0
        self.ahead: dict[str, float] = {}
        self.where = "home"

    def monotonic(self) -> float:
        self.up += 1e-4
        return 1000.0 + self.up

    def time(self) -> float:
        self.up += 1e-4
        return self.start + self.up + self.ahead.get(self.where, 0.0)

    def time_ns(self) -> int:
        return round(self.time() * 1e9)

    def thread_time(self) -> float:
        return 0.0  # nobody keeps to a share of a processor here

    def sleep(self, seconds: float) -> None:
        self.up += seconds


class Inline:
    """An executor without threads. A kill is no result."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any, **how: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **how))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, work: Callable[..., Any], *args: Any) -> Iterator[Any]:
        return iter([work(*each) for each in zip(*args, strict=True)])

    def shutdown(self, **_: Any) -> None:
        pass


class Driven:
    """In the place of the recorder's thread: it works when it is woken, in the thread that wakes it."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self, timeout: float) -> None:
        pass


class Wake:
    """In the place of the event that wakes the recorder's thread."""

    def __init__(self, runtime_: runtime.Runtime) -> None:
        self.runtime = runtime_
        self.gone = False

    def is_set(self) -> bool:
        return False

    def clear(self) -> None:
        pass

    def set(self) -> None:
        queue, writer = self.runtime.call_queue, self.runtime._writer
        if self.gone or queue.closed:
            return
        if queue.closing:
            writer.run(0.0)
        else:
            with queue.at_work, writer._guard():
                writer._cycle()


def recorder(home: Path, run: str, **how: Any) -> Recorder:
    """Return a recorder without a thread."""
    made = Recorder(home, run, flush_interval=3000.0, **how)
    made._runtime.call_queue.wake = Wake(made._runtime)  # type: ignore[assignment]
    return made


def end(made: Recorder) -> None:
    """Kill the process of a recorder."""
    made._runtime.call_queue.wake.gone = True  # type: ignore[attr-defined]
    runtime._LIVE.discard(made._runtime)


def turn(made: Recorder) -> None:
    """Let the recorder's thread have its turn: the flush interval is over."""
    made._runtime.call_queue.wake.set()


def _look(watch: Any) -> None:
    watch.pid = os.getpid()
    with Guard(watch.problems.health, "switch", cost=False):
        watch._look()
    watch._looked.set()


@contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes while the block runs."""
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    try:
        for place, name, value in changes:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in reversed(before):
            setattr(place, name, value)


@contextmanager
def one_thread(clock: Clock, objects: Objects, phone: Phone, draw: Random, disk: MachineDisk) -> Iterator[None]:
    """Let everything of the product work in this thread, on these clocks, this network and this disk."""
    threads = SimpleNamespace(Thread=Driven, Lock=threading.Lock, current_thread=threading.current_thread)
    route = [Route(phone, frozenset({"critical", "warning", "info"}))]
    execute, connect_file = Store.execute, Store._connect_file

    def counted(store: Store, cursor: Any, name: str, /, *given: Any, **how: Any) -> None:
        disk.step("statement", name)
        execute(store, cursor, name, *given, **how)

    def opened(store: Store) -> duckdb.DuckDBPyConnection:
        connection = connect_file(store)
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")  # who is killed leaves its log
        return connection

    with replaced(
        *[(time, name, getattr(clock, name)) for name in TIMES],
        *[(module, "ThreadPoolExecutor", Inline) for module in POOLS],
        (secrets, "token_hex", lambda count=16: draw.randbytes(count).hex()),
        (uuid, "uuid4", lambda: uuid.UUID(int=draw.getrandbits(128), version=4)),
        (runtime, "threading", threads),
        (switch._Watch, "start", _look),
        (Deadline, "run", lambda _, work: work()),
        (sending, "channels_of", lambda *_, **__: route),
        (bucket, "obstore", objects),
        (bucket, "from_url", lambda *_, **__: None),
        (Store, "execute", counted),
        (schema, "check_file", lambda home: None),  # opens the index once more
        (Store, "_connect_file", opened),
        *[(module, "SMALL_FILES", 4) for module in (archive, retention)],
        (store_module, "_SETTINGS", store_module._SETTINGS | {"threads": 1}),
    ):
        yield


class Life:
    """One life of the service, from its start to its end or its kill."""

    def __init__(self, folder: Path, *, bucket_: bool, policy: RetentionPolicy | None = None) -> None:
        address = ADDRESS if bucket_ else None
        self.home = Home(folder)
        self.service = Service(self.home, policy=policy, parts=_parts(None, address))
        self.lock = self.home.lock()
        self.store: Store | None = None
        try:
            shipped_part.restore(address)(self.home)
            self.store = Store.open(self.home)
            parts = self.service.assemble(self.store)
            self.service._schedule = SimpleNamespace(soon=lambda job: None)  # type: ignore[assignment]
            self.actions = {name: action for part in parts for name, action in part.actions.items()}
        except BaseException:
            self.kill()
            raise

    def do(self, job: str) -> None:
        """Let a job have its turn."""
        if job in self.service.jobs:
            self.service.jobs[job].run_now()

    def act(self, name: str, **document: Any) -> Any:
        return self.actions[name].run(document)

    def kill(self) -> None:
        """End without a last word: what DuckDB has committed stays in its log."""
        if self.store is not None:
            self.store.archive.close()
            self.store._closed = True
            self.store._close()
        self.lock.release()

    def close(self) -> None:
        """End in order."""
        assert self.store is not None
        try:
            self.store.close()
        finally:
            self.lock.release()


class Node:
    """The shipper of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shipper = shipper.Shipper(folder, BucketPlace(Bucket(ADDRESS)), threading.Event())

    def ship(self) -> None:
        """Put what waits, as one turn of the shipper does."""
        for waiting in self.shipper.queue.waiting():
            if not self.shipper._put(waiting):
                break

    def follow(self, run: str) -> None:
        with suppress(OSError, ValueError):
            Follower(self.shipper._place, self.folder, run).look()


@dataclass
class Sequence:
    """A sequence as trainer and engine know it."""

    step: int
    sample: str
    ids: np.ndarray
    mask: np.ndarray
    trainer: np.ndarray
    rollout: np.ndarray
    attempt: int
    trained: bool = False  # acknowledged to the trainer
    sampled: bool = False  # acknowledged to the engine
    forgotten: bool = False  # steps around it were frozen: what its engine said goes, where no trainer used it
    gone: bool = False  # its tokens may have been retired before its engine's record came


@dataclass
class Run:
    """What is known of a run beside the product: every sequence that was handed over, and what was acknowledged."""

    name: str
    received: bool  # whether the trainer gets r with the sequence
    folder: Path
    sequences: dict[str, Sequence] = field(default_factory=dict)
    unsaid: dict[str, list[Sequence]] = field(default_factory=lambda: {"trained": [], "sampled": []})
    attempts: int = 0
    step: int = 0  # next one
    trainer: Recorder | None = None
    engine: Recorder | None = None
    switch: CorrectionSwitch | None = None
    scalars: Counter[int] = field(default_factory=Counter)  # step → records of it
    applied: set[tuple[int, str]] = field(default_factory=set)  # step and fingerprint that the trainer stated
    own: CorrectionConfig | None = None  # that the trainer applies whatever it is told
    told: int = 0  # newest directive that the trainer has heard
    sick: bool = False  # what it records now
    was_sick: bool = False
    mode: str | None = None  # of its correction as a user chose it last; None: not known to have been confirmed
    deleted: str = ""  # "", "asked" or "confirmed"
    frozen: dict[int, dict[str, float | None]] = field(default_factory=dict)  # step → its numbers when it was frozen
    frozen_in: dict[int, int] = field(default_factory=dict)  # step → attempt then

    def begin(self, draw: Random, step: int | None = None) -> None:
        """Start trainer and engine, at a step; without one after the first time from an earlier one, as from a
        checkpoint."""
        self.attempts += 1
        earlier = 0 if self.attempts == 1 else draw.randrange(max(self.step - 3, 0), self.step + 1)
        self.step = earlier if step is None else step
        self.trainer = recorder(self.folder, self.name, rank=0, component="trainer")
        self.trainer.begins(self.step)
        self.engine = recorder(self.folder, self.name, replica="east", component="vllm")
        self.switch = CorrectionSwitch(self.folder, self.name, recorder=self.trainer)

    def end(self) -> None:
        """Kill both."""
        for made in (self.trainer, self.engine):
            if made is not None:
                end(made)
        self.trainer = self.engine = self.switch = None
        self.unsaid = {"trained": [], "sampled": []}

    def train(self, rng: np.random.Generator, *, odd: float, sampled: bool) -> None:
        """Record one step."""
        assert self.trainer is not None
        assert self.engine is not None
        some = [self._sequence(rng, index, odd) for index in range(int(rng.integers(1, 5)))]
        self.sequences |= {each.sample: each for each in some}
        together = {"sample_ids": [each.sample for each in some], "token_ids": [each.ids for each in some]}
        if sampled or not self.received:
            self.engine.rollout(**together, logprobs=[each.rollout for each in some], weight_version=str(self.step))
            self.unsaid["sampled"] += some
        rollout = [each.rollout for each in some]
        config = self.own or (None if self.switch is None else self.switch.current(self.step))
        correction = self._corrected(config, some) if config is not None and self.received else None
        self.trainer.training(
            step=self.step,
            **together,
            trainer_logprobs=[each.trainer for each in some],
            rollout_logprobs=rollout if self.received else None,
            mask=[each.mask for each in some],
        )
        self.trainer.step(self.step, loss=float(rng.random()), correction=correction)
        self.unsaid["trained"] += some
        self.scalars[self.step] += 1
        self.step += 1

    def _corrected(self, config: CorrectionConfig, some: list[Sequence]) -> Any:
        self.applied.add((self.step, config.fingerprint()))
        lists = [[getattr(each, name) for each in some] for name in ("rollout", "trainer", "mask")]
        return correct(config, *lists)

    def _sequence(self, rng: np.random.Generator, index: int, odd: float) -> Sequence:
        n = int(rng.integers(4, 12))
        rollout = np.minimum(-rng.exponential(1.0, n) - 0.01, -0.01).astype(np.float32)
        spread = 0.8 if self.sick else 1e-3
        trainer = np.minimum(rollout + spread * rng.standard_normal(n), -1e-3).astype(np.float32)
        if rng.random() < odd:
            side = (trainer, rollout)[int(rng.integers(2))]
            side[int(rng.integers(n))] = (np.nan, -np.inf, 0.5)[int(rng.integers(3))]
        mask = rng.random(n) < 0.9
        mask[0] = True
        name = f"{self.attempts}-{self.step}-{index}"
        ids = rng.integers(0, 1000, n).astype(np.int64)
        return Sequence(self.step, name, ids, mask, trainer, rollout, self.attempts)

    def flush(self, kinds: str = "sampled trained") -> None:
        """Flush both, or one; what they say is on disk, is."""
        for made, kind in ((self.engine, "sampled"), (self.trainer, "trained")):
            if made is None or kind not in kinds:
                continue
            some, self.unsaid[kind] = self.unsaid[kind], []
            if made.flush(1.0):
                for each in some:
                    setattr(each, kind, True)

    def hear(self) -> None:
        """Let the trainer's switch look, as its thread does each second."""
        if self.switch is not None:
            _look(self.switch._watch)
            self.told = max(self.told, self.switch.version)


def oracle(some: list[tuple[Sequence, bool]]) -> dict[str, float | None]:
    """Return metrics of a step by their plain formulas. Each sequence with whether r is known."""
    expected = sum(int(each.mask.sum()) for each, _ in some)
    differences = []
    for each, known in some:
        if known:
            t, r = each.trainer.astype(np.float64), each.rollout.astype(np.float64)
            valid = each.mask & np.isfinite(t) & np.isfinite(r) & (t <= 0) & (r <= 0)
            differences.append((t - r)[valid])
    d = np.concatenate(differences) if differences else np.zeros(0)
    if not len(d):
        none = dict.fromkeys(("backend.k3_kl", "backend.kl", "backend.logprob_abs_diff_max", "backend.ess"))
        return {**none, "backend.coverage": 0.0}
    ratio = np.exp(np.clip(d, -20, 20))
    mean, square = float(np.mean(ratio)), float(np.mean(ratio**2))
    return {
        "backend.k3_kl": float(np.mean(np.expm1(np.clip(d, -20, 20)) - d)),
        "backend.kl": float(-np.mean(d)),
        "backend.logprob_abs_diff_max": float(np.max(np.abs(d))),
        "backend.ess": mean**2 / square,
        "backend.coverage": len(d) / expected if expected else math.nan,
    }
