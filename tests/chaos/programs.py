"""What runs, and is killed, in chaos: a recorder and a service, each in a process of its own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path

from killed_processes import record_both

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.service.service import Service

RUN = "chaos"
SEQUENCES = 6
CALLS_PER_FLUSH = 3
_PAUSE = 0.02
_FLUSH_SECONDS = 20.0


def _end_with_the_parent() -> None:
    """However the parent ends, kill -9 included, nothing of it is left behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def record(home: Path, name: str, life: int, seed: int, acknowledgements: Path) -> None:
    """Records samples, and writes down those for which `Recorder.flush` (or `close`) returned True.

    Some lives end by closing, the others go on until they are killed.
    """
    _end_with_the_parent()
    rng = random.Random(f"{seed}-{name}-{life}")
    calls = rng.randint(6, 30) if rng.random() < 0.3 else None
    descriptor = os.open(acknowledgements, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    recorder = Recorder(home, RUN, rank=0, segment_tokens=rng.choice((200, 1000, 131_072)), flush_interval=0.05)
    pending: list[str] = []
    for call in itertools.count():
        if call == calls:
            _note(descriptor, pending, ok=recorder.close(_FLUSH_SECONDS))
            return
        sample_ids = [f"{name}.{life}.{call}.{i}" for i in range(SEQUENCES)]
        pending += sample_ids if record_both(recorder, sample_ids, call // 8) else []
        if call % CALLS_PER_FLUSH == CALLS_PER_FLUSH - 1:
            _note(descriptor, pending, ok=recorder.flush(_FLUSH_SECONDS))
            pending.clear()
        time.sleep(_PAUSE)


def _note(descriptor: int, sample_ids: list[str], *, ok: bool) -> None:
    if ok and sample_ids:
        os.write(descriptor, "".join(f"{sample_id}\n" for sample_id in sample_ids).encode())


def serve(home: Path) -> None:
    """The monitor service, until it is killed."""
    _end_with_the_parent()
    Service(Home(home)).run()


def nothing() -> None:
    """Makes the fork server start."""
