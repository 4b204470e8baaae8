"""A trainer that takes ever more memory while it records: ``python hungry_host_program.py HOME``. Prints what was acknowledged."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import numpy as np
from training_calls import call

from logprobe.collectors.recorder.recorder import Recorder

TAKEN = 8 << 20  # bytes a step

if __name__ == "__main__":
    recorder, taken = Recorder(Path(sys.argv[1]), "toy"), []
    for step in count():
        arguments = call(step)
        recorder.training(**arguments)
        taken.append(np.ones(TAKEN, np.uint8))
        if recorder.flush(60):
            print(*arguments["sample_ids"], flush=True)
