"""What ms-swift's callback costs the training thread: `make campaign NAME=cost-ms_swift`. Exit code 1 when it is more than 1 % of a step's processor time."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import ms_swift_program
from cost import measure
from tiny_model import make_tiny_model

STEPS: Final = 10


def main() -> int:
    """Prints the share; → the exit code."""
    cost = measure()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOGPROBE_HOME"] = str(Path(folder, "home"))
        model = make_tiny_model(Path(folder, "model"), hidden=256, layers=4)
        sizes = {"per_device_train_batch_size": 16, "max_completion_length": 128}
        arguments = {**sizes, "use_vllm": "false", "vllm_mode": None, "log_rollout_offpolicy_metrics": "false"}
        ms_swift_program.main({"model": str(model), "out": folder, "steps": STEPS, "arguments": arguments})
    return cost.report("ms-swift's callback", STEPS)


if __name__ == "__main__":
    sys.exit(main())
