"""Weight readings inside a worker, the process that holds the weights: a few values of every tensor, on request.

The worker also reports loaded LoRA adapters without a request (see `adapter_loads`).

The worker's own thread reads after a step, so that no load by vLLM and no capture of a CUDA graph is in progress. On an
accelerator it launches small kernels on the step's stream and a copy on a side stream. It does not wait for them. Later
steps check for their completion. A separate thread hashes and writes. A reading that differs from the previous one is
repeated. Only repeated values are reported, since a colocated trainer may be writing during a reading.

In total, readings use at most a thousandth of the elapsed time.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors import fingerprint as values
from logprobe.collectors.clock import machine
from logprobe.collectors.fingerprint import Fingerprint
from logprobe.collectors.health import LOGGER, Guard, Health
from logprobe.collectors.recorder import torch_bridge
from logprobe.collectors.recorder.torch_bridge import Block
from logprobe.collectors.vllm.effective import effective
from logprobe.collectors.vllm.weights.adapter_loads import AdapterLoads, watch_adapters
from logprobe.collectors.vllm.weights.exchange import Answer, Exchange, folder_of, worker_name
from logprobe.collectors.vllm.weights.loads import READ_WEIGHTS
from logprobe.collectors.vllm.weights.pieces import Piece, pieces

_TICK_SECONDS: Final = 0.25
_CHECK_SECONDS: Final = 10.0
_SHARE: Final = 0.0008  # of the time that has passed
_AT_ONCE: Final = 0.1  # seconds that may be used up front
_AGAIN: Final = "again"


@dataclass(frozen=True)
class _Sample:
    """Values [tensors, VALUES] as float32, and the times of their reading."""

    reason: str
    began: float
    ended: float
    sampled: NDArray[np.float32]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class _Copy:
    """Values in transfer from an accelerator. `block` holds them once all `events` have completed."""

    reason: str
    began: float
    pieces: tuple[Piece, ...]
    block: Block
    events: list[Any]


class WeightReader:
    """Reader of one worker's weights. The worker's thread reads, and another thread hashes and writes."""

    def __init__(self, worker: Any, exchange: Exchange, name: str | None, loads: AdapterLoads | None = None) -> None:
        self.due = False  # whether `after_step` has anything to do
        self.loads = loads  # None: this worker's are not told
        self.spent = 0.0  # seconds of the worker's thread
        self._worker = weakref.ref(worker)
        self._exchange = exchange
        self._name = name
        self._answers = exchange.answers_of(name)
        self._health = Health()
        self._plan: tuple[Piece, ...] = ()
        self._planned_for: weakref.ref[Any] | None = None
        self._wanted: deque[str] = deque()
        self._copy: _Copy | None = None
        self._copies = torch_bridge.DeviceCopies()
        self._samples: deque[_Sample] = deque()
        self._reporter = Reporter(self._answers.append)
        self._reporting = threading.Lock()
        self._asleep = False  # the weights' memory may be gone
        self._started = time.monotonic()
        self._once: float | None = None  # seconds until the first answer
        self._next_check = float("inf")  # nobody has asked yet
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="logprobe-weights", daemon=True)

    def start(self) -> None:
        """Start the thread that listens for requests."""
        self._thread.start()

    # --- The worker's thread ---

    def stepped(self) -> None:
        """Record that a step ran, so the weights are in memory, and read them if that is due."""
        self._asleep = False
        if self.due:
            self.after_step()

    def after_step(self) -> None:
        """Start a reading, or check whether one has arrived."""
        started = time.thread_time()
        with Guard(self._health, "vllm_worker.after_step", cost=False):
            if self._copy is not None:
                self._collect(self._copy)
            elif self._wanted:
                self._read(self._wanted.popleft())
            self.due = self._copy is not None
        self.spent += time.thread_time() - started

    def describe(self, look: Callable[[], Mapping[str, object]]) -> None:
        """Record the effective settings of the engine."""
        with Guard(self._health, "vllm_worker.describe", cost=False):
            self._exchange.write_effective(self._name, look())

    def sleeps(self) -> None:
        """Wait until no reading accesses the weights, since their memory is about to be freed."""
        self._asleep = True
        with Guard(self._health, "vllm_worker.settle", cost=False):
            self._settle()

    def read_at_the_end(self) -> None:
        """Read the weights of an ending engine twice, since only repeated readings count."""
        with Guard(self._health, "vllm_worker.read_at_the_end", cost=False):
            for _ in range(0 if self._asleep else 2):
                self._settle()
                self._read("check")
                self._settle()
                self._report()

    def _settle(self) -> None:
        if self._copy is not None:
            for event in self._copy.events:
                event.synchronize()
            self._collect(self._copy)

    def _read(self, reason: str) -> None:
        began = time.monotonic()
        worker = self._worker()
        model = None if worker is None else worker.get_model()
        if model is None:
            return
        wanted = self._tensors(model)
        on_device = [tensor for tensor, *_ in wanted if torch_bridge.on_device(tensor)]
        if not on_device:
            self._samples.append(_Sample(reason, began, time.monotonic(), values.values_of(wanted), self._plan))
        elif len(on_device) == len(wanted):  # of a model that is half in the host's memory nothing is read
            joined = values.sampled_together(wanted)
            block = torch_bridge.pinned_block(joined.numel() * joined.element_size())
            self._copy = _Copy(reason, began, self._plan, block, self._copies.copy([(joined, 0)], block))

    def _collect(self, copy: _Copy) -> None:
        if not all(event.query() for event in copy.events):
            return
        sampled = np.zeros((len(copy.pieces), values.VALUES), np.float32)
        counts = [piece.count for piece in copy.pieces]
        values.place(sampled, range(len(counts)), counts, copy.block.memory.view(np.float32))
        self._samples.append(_Sample(copy.reason, copy.began, time.monotonic(), sampled, copy.pieces))
        self._copy = None

    def _tensors(self, model: Any) -> list[tuple[Any, int, int, int]]:
        """Return the parameters with the positions to read. Plan again if a parameter's shape or dtype has changed."""
        planned = self._planned_for is not None and self._planned_for() is model
        tensors = [piece.tensor() for piece in self._plan] if planned else [None]
        if any(tensor is None for tensor in tensors):
            self._plan, self._planned_for = tuple(pieces(model)), weakref.ref(model)
            tensors = [piece.tensor() for piece in self._plan]
        return [
            (tensor, piece.start, piece.step, piece.count) for tensor, piece in zip(tensors, self._plan, strict=True)
        ]

    # --- A thread of ours ---

    def _run(self) -> None:
        while self._worker() is not None and os.getpid() == self._process:
            time.sleep(_TICK_SECONDS)
            with Guard(self._health, "vllm_worker.run", cost=False):
                self._listen()
                self._report()
                if self.loads is not None:
                    self.loads.send()
            for problem in self._health.due():
                LOGGER.warning("weights are not fingerprinted: %s", problem.message)

    def _listen(self) -> None:
        now = time.monotonic()
        asked = [str(line.get("reason")) for line in self._exchange.asked.read_new()]
        if asked or (now >= self._next_check and not self._wanted):
            self._next_check = now + _CHECK_SECONDS
            self._wanted.append(asked[-1] if asked else "check")  # one reading answers all who asked
        self.due = self._copy is not None or (bool(self._wanted) and self._affordable(now))

    def _affordable(self, now: float) -> bool:
        """Return whether another reading is affordable. The first answer does not count, since it starts libraries."""
        if self._once is None:
            return True
        return self.spent + time.thread_time() - self._once <= _AT_ONCE + _SHARE * (now - self._started)

    def _report(self) -> None:
        with self._reporting:
            while self._samples:
                if self._reporter.take(self._samples.popleft()):
                    self._wanted.append(_AGAIN)
                elif self._once is None:
                    self._once = self.spent + time.thread_time()


class Reporter:
    """Converter of samples to answers. Only repeated samples count."""

    def __init__(self, send: Callable[[Answer], None]) -> None:
        self._send = send
        self._stable: str | None = None
        self._unsure: tuple[_Sample, Fingerprint] | None = None
        self._keys: tuple[str, ...] | None = None

    def take(self, sample: _Sample) -> bool:
        """Process a sample and return whether the weights must be read again before a report."""
        now = _fingerprint(sample)
        if now.digest == self._stable:
            self._answer(sample, now)
            self._unsure = None
            return False
        before = self._unsure
        if before is not None and before[1].digest == now.digest:
            self._unsure, self._stable = None, now.digest
            self._answer(replace(sample, began=before[0].began, reason=before[0].reason), now)
            return False
        self._unsure = (sample if before is None else replace(sample, reason=before[0].reason), now)
        return True

    def _answer(self, sample: _Sample, fingerprint: Fingerprint) -> None:
        answer: Answer = {
            "reason": "check" if sample.reason == _AGAIN else sample.reason,
            "began": sample.began,
            "ended": sample.ended,
            "wall": time.time() - time.monotonic(),
            "machine": machine(),
            "hashes": fingerprint.hashes.tolist(),
        }
        if fingerprint.keys != self._keys:
            self._keys = answer["keys"] = fingerprint.keys
        self._send(answer)


def _fingerprint(sample: _Sample) -> Fingerprint:
    """Return hashes in the order of the pieces, each in its own dtype."""
    hashes = np.zeros(len(sample.pieces), np.uint32)
    dtypes = np.array([piece.dtype.removeprefix("torch.") for piece in sample.pieces])
    for dtype in set(dtypes.tolist()):
        rows = dtypes == dtype
        hashes[rows] = values.hashes(
            values.rounded(sample.sampled[rows], dtype if dtype in values.DTYPES else "float32")
        )
    return Fingerprint(tuple(piece.key for piece in sample.pieces), hashes)


def watch(worker: Any, config: Any) -> None:
    """Read the weights of `worker`, vLLM's worker in this process, at each request of its engine."""
    if not callable(getattr(worker, "execute_model", None)) or hasattr(worker, "logprobe_reader"):
        return
    rank = int(getattr(worker, "rank", 0)) % max(config.parallel_config.world_size, 1)
    exchange = Exchange(folder_of(config))
    loads = AdapterLoads(worker, exchange) if rank == 0 and getattr(config, "lora_config", None) is not None else None
    reader = WeightReader(worker, exchange, worker_name(config, rank), loads)
    worker.logprobe_reader = reader
    setattr(worker, READ_WEIGHTS, reader.read_at_the_end)
    worker.execute_model = _after(worker.execute_model, reader.stepped)
    if loads is not None:
        worker.execute_model = loads.within_step(worker.execute_model)
    if callable(getattr(worker, "sleep", None)):
        worker.sleep = _before(worker.sleep, reader.sleeps)
    if callable(getattr(worker, "compile_or_warm_up_model", None)):  # the last call before requests, when all is chosen
        last = worker.compile_or_warm_up_model
        worker.compile_or_warm_up_model = _after(last, lambda: reader.describe(lambda: effective(worker, config)))
    reader.start()
    if loads is not None:
        watch_adapters()


def _before(original: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """Return a method that calls `act` before `original`."""

    def method(*args: Any, **kwargs: Any) -> Any:
        act()
        return original(*args, **kwargs)

    return method


def _after(original: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """Return a method that calls `act` after `original`."""

    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act()
        return result

    return method
