"""Two places on this machine: a file with one JSON document per line, appended whole or not at all and never twice; and
standard error."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from logprobe.alerts.sending import messages
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.collectors.errors import ChannelError
from logprobe.collectors.plain_text import harmless


class Console:
    """Writes to standard error, or to `stream`."""

    pace = 0.0

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self._stream = stream

    def send(self, outgoing: Outgoing) -> Receipt:
        """Writes one line; characters that would move a terminal's cursor are replaced."""
        line = harmless(messages.one_line(outgoing.notification))
        try:
            print(f"logprobe: {line}", file=self._stream or sys.stderr, flush=True)
        except (OSError, ValueError) as error:
            raise ChannelError("unreachable", f"standard error cannot be written ({error})") from None
        return {}

    def check(self) -> list[str]:
        """Nothing to check."""
        return []


class File:
    """One file; several services may append to it."""

    pace = 0.0

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path

    def send(self, outgoing: Outgoing) -> Receipt:
        """Appends one line, flushed to the disk."""
        line = outgoing.notification.to_json().encode() + b"\n"
        try:
            with self._locked() as file:
                if outgoing.uncertain_since is None or not _has(self._path, outgoing.notification.key):
                    _append(file, line)
        except OSError as error:
            raise ChannelError("unreachable", f"{self._path} cannot be written ({error.strerror})") from None
        return {}

    def check(self) -> list[str]:
        """Nothing is known before a line is written."""
        return []

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _append(file: int, line: bytes) -> None:
    """All of `line` or nothing: what a full disk or a killed writer left behind is no part of it."""
    size = os.fstat(file).st_size
    torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    content = b"\n" + line if torn else line
    written = 0
    try:
        written = os.write(file, content)
        os.fsync(file)
    finally:
        if written < len(content):
            os.ftruncate(file, size)
    if written < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _has(path: Path, key: str) -> bool:
    with path.open("rb") as lines:
        return any(_key(line) == key for line in lines)


def _key(line: bytes) -> str | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None  # a line that was cut off
    return document.get("key") if isinstance(document, dict) else None
