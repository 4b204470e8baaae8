"""Workers of a Ray that runs on this machine."""

from __future__ import annotations

import os
import signal

import psutil


def kill_worker(task: str) -> int:
    """Of a cluster that this process started: one that runs this function, or ran something a moment ago; → its process id."""
    workers = [each for each in psutil.Process().children(recursive=True) if each.name().startswith("ray::")]
    chosen = next((each for each in workers if each.name() == f"ray::{task}"), workers[0])
    os.kill(chosen.pid, signal.SIGKILL)
    return int(chosen.pid)
