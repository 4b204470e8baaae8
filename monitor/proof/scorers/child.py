"""Shared code of the scorer processes: input of the job, output of the answer, and exit with the parent."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Main = Callable[[Any, Path], Mapping[str, object]]  # takes a job and its folder; returns the answer, see `jobs`


def answer_job(main: Main) -> None:
    """Run `main` on the job of the command line and write its answer, or its error as ``{"error": …}``."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _answer(main, Path(sys.argv[1]), Path(sys.argv[2]))
        code = 0
    except OSError as error:  # a full disk is no result, which would be kept
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        code = 1
    sys.stdout.flush()
    os._exit(code)  # engines leave threads behind that take their time to end


def _answer(main: Main, job: Path, answer: Path) -> None:
    document: Mapping[str, object]
    try:
        document = main(json.loads(job.read_text(encoding="utf-8")), job.parent)
    except (Exception, SystemExit) as error:  # what does not start is a result
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        document = {"error": _words(error)}
    temporary = answer.with_suffix(".tmp")
    temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.replace(answer)


def _words(error: BaseException) -> str:
    """Return the first informative line of an error. Causes come first, since wrappers are uninformative."""
    while error.__cause__ is not None:
        error = error.__cause__
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        text = str(error.errors()[0]["msg"])
    else:
        text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:400]


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the parent closes its end, or dies
    os._exit(1)
