"""What an adapter costs the training thread, as a share of the processor time of `Trainer.train`.

Processor time, not wall-clock time: other processes of the machine have no part in it. The models are small, so a step costs little and the share is
an upper bound for larger ones.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import transformers

from logprobe.collectors.integrations.wrapping import Wrapper

TARGET: Final = 0.01


class Cost:
    """Seconds of processor time of the training thread."""

    adapter = 0.0
    total = 0.0

    def report(self, name: str, steps: int) -> int:
        """Prints the share; → the exit code, 1 above the target."""
        share = self.adapter / self.total
        adapter, total = (1e3 * seconds / steps for seconds in (self.adapter, self.total))
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
