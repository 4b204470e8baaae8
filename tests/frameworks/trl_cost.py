"""What `trl.watch` costs the training thread: `make campaign NAME=cost-trl`. Exit code 1 when it is more than 1 % of a step's processor time."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import trl_program
from cost import measure
from tiny_model import make_tiny_model

from logprobe.collectors.integrations import trl

STEPS: Final = 10


def main() -> int:
    """Prints the share; → the exit code."""
    cost = measure()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder, "model"), hidden=256, layers=4)
        config = {"per_device_train_batch_size": 16, "max_completion_length": 128}
        trainer = trl_program.trainer_of(
            {"model": str(model), "out": folder, "steps": STEPS, "engine": "", "config": config}
        )
        recorder = trl.watch(trainer, home=Path(folder, "home"), run="cost")
        trainer.train()
        recorder.close()
    return cost.report("trl.watch", STEPS)


if __name__ == "__main__":
    sys.exit(main())
