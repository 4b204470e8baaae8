"""Launcher of a program that must not outlive its parent.

    python -m logprobe.app.processes.die_with_parent <parent pid> <program> [argument …]

The kernel sends SIGTERM when the parent dies, even by kill -9. This process requests that and then becomes the
program. The request is made in the child, after exec, because code between fork and exec is unsafe in a parent with
threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> None:
    """Replace this process with the program. Return only if the parent has already ended."""
    parent, *program = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the kernel was asked
        return
    os.execvp(program[0], program)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.exit(1)
