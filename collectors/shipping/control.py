"""Control documents, one per run, which carry the directives for its trainers to a node.

    {"run": …, "directives": the content of the run's file, or null, "stopped": whether the kill switch is set}

A node without a connection keeps the last document.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.files import READABLE, replace_file
from logprobe.collectors.shipping.place import Place
from logprobe.collectors.spool.segments import run_dir

_FROM_SERVICE: Final = "set by the service\n"  # of a kill switch that is released when the service does so
_MOST_BYTES: Final = 2 << 20


def name_of(run: str) -> str:
    """Return the name of a run's document."""
    return run_dir(Path(), run).name


def document(file: DirectiveFile, run: str) -> bytes | None:
    """Return the control document for the trainers of a run, or None if they have no directives. Raises `OSError`."""
    content, stopped = file.content(), file.stop_path.exists()
    if content is None and not stopped:
        return None
    told = None if content is None else content.decode("utf-8", "replace")
    return json.dumps({"run": run, "directives": told, "stopped": stopped}).encode()


def nothing(run: str) -> bytes:
    """Return the document that revokes the directives of a run."""
    return json.dumps({"run": run, "directives": None, "stopped": False}).encode()


def apply(home: Path, run: str, content: bytes) -> None:
    """Write the document into the node's files. A kill switch set on the node stays set.

    Raises:
        ValueError: the document does not belong to this run.
        OSError: a file cannot be written.
    """
    said: Any = json.loads(content) if len(content) <= _MOST_BYTES else None
    if not isinstance(said, dict) or said.get("run") != run:
        raise ValueError(f"not a control document of run {run!r}; issue the directives again")
    file, directives = DirectiveFile(home, run), said.get("directives")
    if isinstance(directives, str) and file.content() != directives.encode():
        replace_file(file.path, directives.encode(), mode=READABLE)
    if said.get("stopped") is not False:
        if not file.stop_path.exists():
            replace_file(file.stop_path, _FROM_SERVICE.encode(), mode=READABLE)
    elif _text(file.stop_path) == _FROM_SERVICE:
        file.stop_path.unlink(missing_ok=True)


class Follower:
    """Updater of one run's files, used by one thread at a time."""

    def __init__(self, place: Place, home: Path, run: str) -> None:
        self._place, self._home, self._run = place, home, run
        self._tag: str | None = None

    def look(self) -> None:
        """Fetch the document once. Raise `OSError` or `ValueError`, after which the last document stays in effect."""
        content, tag = self._place.control(name_of(self._run), self._tag)
        if content is not None:
            apply(self._home, self._run, content)
        self._tag = tag  # only now: a document that could not be applied is asked for again


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
