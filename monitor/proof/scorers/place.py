"""Where arms run: on this machine one after the other, or on several at once (`ray_executor`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from logprobe.monitor.proof.scorers.running import Outcome

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def has_cuda() -> bool:
    """Whether there is a CUDA device; asks the driver, not torch."""
    return Path("/proc/driver/nvidia/version").exists()


@dataclass(frozen=True, slots=True)
class Place:
    """How many arms run at a time, and whether there are CUDA devices for them."""

    arms: int = 1
    cuda: bool = field(default_factory=has_cuda)


class Executor(Protocol):
    """Runs scorers, as `run_scorer` does; a context manager that ends those that still run."""

    @property
    def place(self) -> Place:
        """Where they run."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *_: object) -> None:
        """Ends what still runs."""

    def __call__(
        self, module: str, job: Mapping[str, Any], *, seconds: float, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Runs `module` on `job`; called by as many threads as `place.arms`."""


def each(work: Callable[[_Item], _Result], items: Sequence[_Item], at_once: int) -> list[_Result]:
    """What `work` returns for each item, in their order; `at_once` threads work, this one alone when that is 1.

    >>> each(str, [3, 1, 2], at_once=2)
    ['3', '1', '2']
    """
    if at_once == 1:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(at_once)
    try:
        return list(pool.map(work, items))
    finally:  # after Ctrl-C whoever owns the executor ends what still runs
        pool.shutdown(wait=False, cancel_futures=True)
