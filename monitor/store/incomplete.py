"""Which steps of a run raw tokens cannot measure: ``raw/<run>/!incomplete.json``, for whoever has lost the store and makes a new one.

Numbers of such a step would be of some of its sequences only; unknown is right, and a part of it is wrong.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import replace_file
from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import raw_dir

FILE: Final = "!incomplete.json"
Steps = tuple[int, int]  # the first and the last


def incomplete_steps(home: Home, run: str) -> Steps | None:
    """Between which steps some have not all of their raw tokens; None: all have them."""
    with suppress(OSError, ValueError, TypeError):
        first, last = json.loads(_file(home, run).read_text(encoding="utf-8"))
        return int(first), int(last)
    return None


def note_incomplete(home: Home, run: str, first: int, last: int) -> None:
    """Widens what is noted of a run. Raises `StoreError`."""
    known = incomplete_steps(home, run)
    wanted = (first, last) if known is None else (min(first, known[0]), max(last, known[1]))
    if wanted == known:
        return
    try:
        replace_file(_file(home, run), json.dumps(wanted).encode())
    except OSError as error:
        raise StoreError(
            f"{_file(home, run)} cannot be written ({error.strerror}); make room below {home.raw}"
        ) from error


def _file(home: Home, run: str) -> Path:
    return raw_dir(home, run, "training").parent / FILE
