"""Deletes a run and is killed (SIGKILL) when it comes to one of its steps: `python deletion_program.py HOME RUN STEP`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from logprobe.monitor.deletion import part, places
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

STEPS = {
    "before the tombstone": (Tombstones, "change"),
    "before anything is removed": (places, "remove"),
    "before the commit": (Store, "refresh_steps_view"),
    "before raw files go": (Store, "retire"),
}


def killed(*_: Any, **__: Any) -> None:
    """The end."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    home, run, step = sys.argv[1:]
    owner, name = STEPS[step]
    setattr(owner, name, killed)
    part.delete(Home(home), {"run": run, "author": "ada", "force": True})
