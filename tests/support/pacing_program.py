"""A trainer in a process of its own, a step every so often: prints each step once it is in the spool, and when that was.

pacing_program.py HOME RUN STEPS SECONDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from logprobe.collectors.recorder.recorder import Recorder

SHAPE = (4, 16)


def main(home: Path, run: str, steps: int, seconds: float) -> None:
    rng = np.random.default_rng(7)
    with Recorder(home, run, rank=0) as recorder:
        for step in range(steps):
            rollout = -rng.exponential(1.0, SHAPE).astype(np.float32)
            recorder.training(
                step=step,
                sample_ids=[f"{step}-{row}" for row in range(SHAPE[0])],
                token_ids=rng.integers(0, 1000, SHAPE),
                rollout_logprobs=rollout,
                trainer_logprobs=np.minimum(rollout + rng.normal(0, 0.01, SHAPE), 0).astype(np.float32),
                mask=np.ones(SHAPE, bool),
            )
            assert recorder.flush(120)
            print(step, time.time(), flush=True)
            time.sleep(seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
