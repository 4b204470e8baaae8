"""Journal of the actions of users and the controller, and of sent messages.

    <home>/journal.jsonl        {"crc":"1a2b3c4d","entry":{"at":…,"kind":…,"what":{…}}}

The index can be deleted at any time. The journal has the data that no record contains: acknowledgements, silences,
acceptances, directives, and deliveries of messages. An entry is durable before its effect. `append` returns first, then
the action is confirmed or the message sent. An entry may thus exist without its effect, but no effect without its
entry. Applying an entry must be idempotent.

Lines are only added. An incomplete last line was never acknowledged and is removed. A line with a wrong checksum is
counted, skipped and kept.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.clock import TIME, Time
from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import DISK, Disk

NAME: Final = "journal.jsonl"
_HEAD: Final = b'{"crc":"%08x","entry":'
_HEAD_SIZE: Final = len(_HEAD % 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `number`: its line, from 1. `at`: ISO 8601. `what`: its details as JSON-like data."""

    number: int
    at: str
    kind: str
    what: Mapping[str, Any]


class Journal:
    """Journal of one data directory. Only the process that owns the data directory writes it. Used by one thread."""

    def __init__(self, home: Path, *, disk: Disk = DISK, time: Time = TIME) -> None:
        """Set up the journal without disk access."""
        self.path = home / NAME
        self.damaged: list[int] = []  # numbers of lines whose checksum is wrong
        self._disk = disk
        self._time = time
        self._lines = 0
        self._size = 0  # of what is durable
        self._named = False  # the file's name is durable
        self._torn = False  # more may be in the file than `_size`

    def open(self) -> list[Entry]:
        """Return all entries, oldest first. Raises `StoreError` if they cannot be read. The caller must then not
        act."""
        try:
            content = self._content()
            whole = content.rfind(b"\n") + 1
            tail = content[whole:]
            lines = content[:whole].split(b"\n")[:-1]
            entries = [_entry(number, line) for number, line in enumerate(lines, 1)]
            if tail and _entry(0, tail) is not None:  # only its end is missing
                entries.append(_entry(len(entries) + 1, tail))
                self._disk.append(self.path, b"\n")
                whole = len(content) + 1
            elif tail:
                self._disk.truncate(self.path, whole)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be read ({error}). Recorded user actions are unknown; make it readable and retry"
            ) from error
        self.damaged = [number for number, entry in enumerate(entries, 1) if entry is None]
        self._lines, self._size, self._torn = len(entries), whole, False
        return [entry for entry in entries if entry is not None]

    def append(self, kind: str, what: Mapping[str, Any]) -> Entry:
        """Add an entry durably. Raises `StoreError` if that fails. The caller must then not act."""
        entry = Entry(self._lines + 1, self._time.stamp(), kind, what)
        line = _line(entry)
        try:
            self._repair()
            self._torn = True
            self._disk.append(self.path, line)
            if not self._named:
                self._disk.sync(self.path.parent)
                self._named = True
        except OSError as error:
            with suppress(OSError):  # the next one tries again
                self._repair()
            raise StoreError(
                f"{self.path} cannot be written ({error}). The action was not performed; check disk space and retry"
            ) from error
        self._lines, self._size, self._torn = entry.number, self._size + len(line), False
        return entry

    def _content(self) -> bytes:
        """Return the content of the file after flushing it. A process that was killed may not have done so."""
        if self._disk.size(self.path) is None:
            return b""
        self._disk.sync(self.path)
        self._disk.sync(self.path.parent)
        self._named = True
        return self._disk.read(self.path)

    def _repair(self) -> None:
        if self._torn and (self._disk.size(self.path) or 0) > self._size:
            self._disk.truncate(self.path, self._size)
        self._torn = False


def _line(entry: Entry) -> bytes:
    said = {"at": entry.at, "kind": entry.kind, "what": dict(entry.what)}
    body = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD % zlib.crc32(body) + body + b"}\n"


def _entry(number: int, line: bytes) -> Entry | None:
    """Return the entry of a line, or None if the line is corrupt."""
    body = line[_HEAD_SIZE:-1]
    if line != _HEAD % zlib.crc32(body) + body + b"}":
        return None
    said = json.loads(body)
    return Entry(number, said["at"], said["kind"], said["what"])
