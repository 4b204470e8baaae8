"""A process with several runs, as a host of sweeps has them: ``python many_runs_program.py HOME FIRST COUNT STEPS``.

Prints how many sequences of each run were accepted and flushed, as one JSON document.
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
from synthetic_run import SEQUENCES, SyntheticRun

from logprobe.collectors.recorder.recorder import Recorder


def main() -> None:
    home, first, count, steps = Path(sys.argv[1]), *map(int, sys.argv[2:])
    with ExitStack() as stack:
        names = [f"run-{number:02d}" for number in range(first, first + count)]
        runs = [
            SyntheticRun(stack.enter_context(Recorder(home, name)), seed=number) for number, name in enumerate(names)
        ]
        for _ in range(steps):
            for run in runs:
                run.record(1)
            time.sleep(0.5)
    print(json.dumps({name: run.next_step * SEQUENCES for name, run in zip(names, runs, strict=True)}))


main()
