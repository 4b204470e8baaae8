"""Deletes a run and is killed (SIGKILL) when it comes to one of its steps: `python deletion_program.py HOME RUN STEP`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from logprobe.monitor.deletion import part, places
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

STEPS = {
    "before the tombstone": (Tombstones, "change"),
    "before anything is removed": (places, "remove"),
    "before the commit": (part, "delete_rows"),
    "before raw files go": (Store, "retire"),
}


def killed(begin: Callable[..., Any] | None) -> Callable[..., None]:
    """A function that is the end, after what it does if `begin` is given."""

    def end(*given: Any, **named: Any) -> None:
        if begin is not None:
            begin(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return end


if __name__ == "__main__":
    home, run, step = sys.argv[1:]
    owner, name = STEPS[step]
    setattr(owner, name, killed(part.delete_rows if name == "delete_rows" else None))
    part.delete(Home(home), {"run": run, "author": "ada", "force": True})
