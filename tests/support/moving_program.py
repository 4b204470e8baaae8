"""Moves a run and kills itself (SIGKILL) before the POINT-th durable change: python moving_program.py FLEET RUN SERVICE POINT

A change is a sync, a rename, a link, a removal, or a transaction's beginning and end. Prints how many there were when it comes to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logprobe.monitor.fleet.table import Fleet
from logprobe.monitor.store.store import Store

CHANGES = ("fsync", "rename", "replace", "link", "unlink", "rmdir")
passed = 0


def point() -> None:
    """One more; the last one."""
    global passed  # noqa: PLW0603
    passed += 1
    if passed == last:
        os.kill(os.getpid(), signal.SIGKILL)


def counted(change: Any) -> Any:
    """A change that is a point."""

    def after_point(*arguments: Any, **named: Any) -> Any:
        point()
        return change(*arguments, **named)

    return after_point


@contextmanager
def transaction(store: Store) -> Iterator[Any]:
    """As the store has it, with points around what it commits."""
    with begun(store) as cursor:
        yield cursor
        point()
    point()


if __name__ == "__main__":
    folder, run, service, number = sys.argv[1:]
    last, begun = int(number), Store.transaction
    Store.transaction = transaction  # type: ignore[method-assign]
    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    Fleet(Path(folder)).move(run, service, "ada")
    print(passed)
