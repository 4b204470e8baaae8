"""A trainer in a process of its own: records calls of known samples, flushes now and then, and prints what it was told.

    recording_program.py HOME CALLS SEQUENCES TOKENS [CALLS_PER_FLUSH]

One JSON document on stdout: `sent` and `acknowledged` sample ids (the latter: under a `Recorder.flush` that said True), what
`close` said, and the recorder's own account.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from logprobe.collectors import Recorder

RUN = "run"
PAUSE = 0.02  # between calls: a trainer does something else, too


def arrays(sequences: int, tokens: int) -> dict:
    random = np.random.default_rng(sequences * tokens)
    rollout = -random.exponential(1.0, (sequences, tokens)).astype(np.float32)
    return {
        "token_ids": random.integers(0, 50_000, (sequences, tokens)),
        "rollout_logprobs": rollout,
        "trainer_logprobs": np.minimum(rollout + random.normal(0, 0.01, rollout.shape), 0).astype(np.float32),
        "mask": np.ones((sequences, tokens), bool),
    }


def main(home: Path, calls: int, sequences: int, tokens: int, per_flush: int = 10) -> dict:
    recorder = Recorder(home, RUN, rank=0, flush_interval=0.05)
    content = arrays(sequences, tokens)
    sent: list[str] = []
    pending: list[str] = []
    acknowledged: list[str] = []
    for call in range(calls):
        names = [f"{call}/{row}" for row in range(sequences)]
        assert recorder.training(step=call, sample_ids=names, **content)
        recorder.step(call, loss=0.5)
        sent += names
        pending += names
        time.sleep(PAUSE)
        if call % per_flush == per_flush - 1:
            if recorder.flush(60):
                acknowledged += pending
            pending.clear()
    deadline = time.monotonic() + 60
    # Closing tries once, and the disk may refuse just then
    while not recorder.flush(60) and time.monotonic() < deadline:
        time.sleep(0.05)
    closed = recorder.close(60)
    return {"sent": sent, "acknowledged": acknowledged, "closed": closed, "health": recorder.health}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
