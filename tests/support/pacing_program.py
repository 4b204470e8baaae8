"""A trainer in a process of its own, a step every so often: prints each step once it is in the spool, and when that was.

pacing_program.py HOME RUN STEPS SECONDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from training_calls import rows

from logprobe.collectors.recorder.recorder import Recorder


def main(home: Path, run: str, steps: int, seconds: float) -> None:
    with Recorder(home, run, rank=0) as recorder:
        for step in range(steps):
            recorder.training(**rows(step))
            assert recorder.flush(120)
            print(step, time.time(), flush=True)
            time.sleep(seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
