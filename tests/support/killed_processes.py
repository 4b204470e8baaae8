"""What runs, and is killed, in the processes of ``scenarios/test_kill_nine.py``."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.service import service

RUN = "killed"
SEQUENCES = 4
CALLS_PER_FLUSH = 4


def length(sample_id: str) -> int:
    """Tokens of a sample: from 1 to 40, and known to the test without being told."""
    return 1 + sum(sample_id.encode()) % 40


def record_both(recorder: Recorder, sample_ids: list[str], step: int) -> bool:
    """Both sides of these samples; whether both were accepted."""
    lengths = [length(sample_id) for sample_id in sample_ids]
    tokens = [np.arange(n, dtype=np.int32) for n in lengths]
    sampled = recorder.rollout(
        sample_ids=sample_ids, token_ids=tokens, logprobs=[np.full(n, -1.0, np.float32) for n in lengths]
    )
    trained = recorder.training(
        step=step,
        sample_ids=sample_ids,
        token_ids=tokens,
        rollout_logprobs=None,
        trainer_logprobs=[np.full(n, -0.5, np.float32) for n in lengths],
        mask=None,
    )
    return sampled and trained


def record(home: Path, life: int, acknowledgements: Path) -> None:
    """Records samples for ever, and writes down those for which `Recorder.flush` returned True."""
    descriptor = os.open(acknowledgements, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    recorder = Recorder(home, RUN, rank=0, segment_tokens=300, flush_interval=0.05)
    pending: list[str] = []
    for call in itertools.count():
        pending += (sample_ids := [f"{life}-{call}-{i}" for i in range(SEQUENCES)])
        record_both(recorder, sample_ids, call // 8)
        if call % CALLS_PER_FLUSH == CALLS_PER_FLUSH - 1:
            if recorder.flush():
                os.write(descriptor, "".join(f"{sample_id}\n" for sample_id in pending).encode())
            pending.clear()
            time.sleep(0.03)


def serve(home: Path) -> None:
    """The monitor service, until it is killed."""
    service._RETENTION_SECONDS = 0.3  # segments are merged once a minute, and lives are shorter
    service.Service(Home(home)).run()
