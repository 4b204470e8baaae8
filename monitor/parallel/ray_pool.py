"""A pool of the processors of a Ray cluster. The task of a killed worker, or the result of a lost node, is computed
again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Self

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor.parallel.pool import Item, LocalPool, Pool, Result, in_order
from logprobe.monitor.parallel.ray_cluster import connected, words

_RETRIES: Final = 5  # workers or nodes that a task may lose


class RayPool:
    """A cluster that is running; a `Pool`. Raises `ConfigurationError` when there is none at `address`."""

    def __init__(self, address: str) -> None:
        """`address`: ``auto``, or as `ray.init` takes it."""
        self._ray, self._ours = connected(address)
        self._printing = contextlib.redirect_stdout(sys.stderr)  # Ray's threads print; stdout is for the result
        self._begun: set[Any] = set()

    @property
    def at_once(self) -> int:
        """Processors of the nodes that are alive."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return max(1, int(sum(node.get("CPU", 0) for node in nodes)))

    def __enter__(self) -> Self:
        self._printing.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._begun:
            self._ray.cancel(task, force=True)
        if self._ours:
            self._ray.shutdown()
        self._printing.__exit__(None, None, None)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `Pool.map`; one processor per task."""
        given = work.args if isinstance(work, partial) else ()
        task = self._ray.remote(max_retries=_RETRIES, num_cpus=1)(work.func if isinstance(work, partial) else work)

        def begin(item: Item) -> Any:
            reference = task.remote(*given, item)
            self._begun.add(reference)
            return reference

        return in_order(begin, self._result, items, self.at_once)

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, LogprobeError):
                raise error.cause from None
            raise ConfigurationError(f"a task on Ray failed: {words(error.cause)}") from error
        except self._ray.exceptions.RayError as error:
            raise ConfigurationError(f"a task on Ray failed: {words(error)}") from error
        finally:
            self._begun.discard(reference)


def pool_at(address: str | None) -> Pool:
    """The Ray cluster at an address; None: the threads of this machine. Raises `ConfigurationError` when there is no
    cluster."""
    return LocalPool() if address is None else RayPool(address)
