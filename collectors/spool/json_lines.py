"""Append-only file of JSON lines for messages between processes.

Appending one short line is atomic on a local file system, so several writers may share it. A reader resumes after the
last complete line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class JsonLines:
    """Append-only file with any number of writers and one reader per object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def append(self, document: Mapping[str, object]) -> None:
        """Make `document` visible to all readers. Raises `OSError`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            written = os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if written != len(line):
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes written; free some disk space")

    def read_new(self) -> list[dict[str, Any]]:
        """Return the documents appended since the last call, without invalid lines. Raise `OSError`."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._offset:
            self._offset = 0  # the file was replaced
        if size == self._offset:
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]  # a line may still be on its way
        self._offset += len(complete)
        documents: list[dict[str, Any]] = []
        for line in complete.splitlines():
            with suppress(ValueError):
                document = json.loads(line)
                documents += [document] if isinstance(document, dict) else []
        return documents
