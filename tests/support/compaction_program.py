"""Compacts a home's store and kills itself (SIGKILL) before or after one of the steps: python compaction_program.py HOME before|after STEP"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from logprobe.monitor.home import Home
from logprobe.monitor.store import compaction

if __name__ == "__main__":
    when, name = sys.argv[2:]
    step = getattr(compaction, name)

    def killed(*arguments: Any) -> Any:
        if when == "after":
            step(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(compaction, name, killed)
    home = Home(sys.argv[1])
    with home.lock():
        compaction.compact(home)
