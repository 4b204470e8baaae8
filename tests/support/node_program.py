"""A trainer of one node, in a process of its own that may be killed: writes down what `Recorder.flush` acknowledged, before anything else.

node_program.py HOME RUN NODE CALLS SEQUENCES TOKENS PAUSE
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from logprobe.collectors import Recorder

PER_FLUSH = 5


def main(home: Path, run: str, node: str, calls: int, sequences: int, tokens: int, pause: float) -> None:
    random = np.random.default_rng(abs(hash(node)) % 2**32)
    rollout = -random.exponential(1.0, (sequences, tokens)).astype(np.float32)
    content = {
        "token_ids": random.integers(0, 50_000, (sequences, tokens)),
        "rollout_logprobs": rollout,
        "trainer_logprobs": np.minimum(rollout + random.normal(0, 0.01, rollout.shape), 0).astype(np.float32),
        "mask": np.ones((sequences, tokens), bool),
    }
    home.mkdir(parents=True, exist_ok=True)
    life = f"{node}-{os.getpid()}"
    with (home / "acknowledged.txt").open("a") as file, recording(home, run) as recorder:
        pending: list[str] = []
        for call in range(calls):
            names = [f"{life}/{call}/{row}" for row in range(sequences)]
            assert recorder.training(step=call, sample_ids=names, **content)
            pending += names
            time.sleep(pause)
            if call % PER_FLUSH == PER_FLUSH - 1:
                if recorder.flush(120):
                    file.write("".join(f"{name}\n" for name in pending))
                    file.flush()
                    os.fsync(file.fileno())
                pending.clear()


def recording(home: Path, run: str) -> Recorder:
    """For the bucket that the environment names, else for the folder of what was acknowledged."""
    return Recorder(os.environ.get("LOGPROBE_HOME") or home, run, rank=0, flush_interval=0.1)


def acknowledged(home: Path) -> list[str]:
    """Sample ids of one node; a line that a kill cut short is none."""
    file = home / "acknowledged.txt"
    content = file.read_text() if file.exists() else ""
    return [line.rstrip("\n") for line in content.splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    where, name, label, *numbers = sys.argv[1:]
    main(Path(where), name, label, *map(int, numbers[:3]), float(numbers[3]))
