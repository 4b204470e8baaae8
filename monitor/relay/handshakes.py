"""Connections that end before anybody says who they are, such as with an old TLS or with none.

gRPC refuses them by itself, tells no code of ours, and writes a line to the standard error stream. It is counted from there.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_FAILED: Final = re.compile(rb"Handshake failed with (?:fatal )?error [A-Z_]+: error:[0-9A-F]+:([^\n]*)")
_SECONDS: Final = 5.0


@contextmanager
def counted(refused: Callable[[str], None]) -> Iterator[None]:
    """Inside the block `refused` is called, from another thread, with the reason of each failed handshake.

    Everything else that is written to the standard error stream of this process passes on to where it went before.
    """
    sys.stderr.flush()
    before = os.dup(sys.stderr.fileno())
    reading, writing = os.pipe()
    os.dup2(writing, sys.stderr.fileno())
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, before, refused), name="logprobe-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, sys.stderr.fileno())  # the pipe's last end: the thread reads what is left and ends
        thread.join(_SECONDS)


def _pass_on(reading: int, to: int, refused: Callable[[str], None]) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            found = _FAILED.search(line)
            if found is None:
                os.write(to, line)
            else:
                refused(found[1].decode("utf-8", "replace").strip(" :"))
    os.close(to)
