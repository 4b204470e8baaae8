"""What an adapter costs the training thread, as a share of the processor time of `Trainer.train`: `make campaign NAME=cost-trl`, `NAME=cost-ms_swift`.

Exit code 1 when it is more than 1 %. Processor time, not wall-clock time: other processes of the machine have no part in it. The models are small, so a step costs little and the share is
an upper bound for larger ones.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import transformers
from tiny_model import make_tiny_model

from logprobe.collectors.integrations.wrapping import Wrapper

TARGET: Final = 0.01
STEPS: Final = 10
SIZES: Final = {"per_device_train_batch_size": 16, "max_completion_length": 128}


class Cost:
    """Seconds of processor time of the training thread."""

    adapter = 0.0
    total = 0.0

    def report(self, name: str) -> int:
        """Prints the share; → the exit code, 1 above the target."""
        share = self.adapter / self.total
        adapter, total = (1e3 * seconds / STEPS for seconds in (self.adapter, self.total))
        print(f"{name}: {adapter:.2f} ms of {total:.0f} ms processor time per step, {share:.2%}")
        return int(share > TARGET)


def measure() -> Cost:
    """Measures the next `Trainer.train` of this process: it, and everything that an adapter does within."""
    cost, guard, train = Cost(), Wrapper.guard, transformers.Trainer.train

    @contextmanager
    def timed(self: Wrapper, what: str) -> Iterator[Any]:
        begun = time.thread_time()
        with guard(self, what) as entered:
            yield entered
        cost.adapter += time.thread_time() - begun

    @functools.wraps(train)
    def trained(self: Any, *arguments: Any, **named: Any) -> Any:
        cost.adapter, begun = 0.0, time.thread_time()
        result = train(self, *arguments, **named)
        cost.total = time.thread_time() - begun
        return result

    Wrapper.guard = timed  # type: ignore[method-assign]
    transformers.Trainer.train = trained
    return cost


def trl(folder: Path, model: str) -> None:
    """Trains with `trl.watch`."""
    import trl_program

    from logprobe.collectors.integrations import trl

    options = {"model": model, "out": str(folder), "steps": STEPS, "engine": "", "config": SIZES}
    trainer = trl_program.trainer_of(options)
    recorder = trl.watch(trainer, home=folder / "home", run="cost")
    trainer.train()
    recorder.close()


def ms_swift(folder: Path, model: str) -> None:
    """Trains with ms-swift's callback."""
    import ms_swift_program

    os.environ["LOGPROBE_HOME"] = str(folder / "home")
    arguments = {**SIZES, "use_vllm": "false", "vllm_mode": None, "log_rollout_offpolicy_metrics": "false"}
    ms_swift_program.main({"model": model, "out": str(folder), "steps": STEPS, "arguments": arguments})


def main(name: str) -> int:
    """Prints the share; → the exit code."""
    cost = measure()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder, "model"), hidden=256, layers=4)
        {"trl": trl, "ms_swift": ms_swift}[name](Path(folder), str(model))
    return cost.report(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
