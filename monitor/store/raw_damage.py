"""Detection of corrupt archive files, and the error messages for statements that need one.

The archive, readers of tokens, and retention share one registry, and retention checks all files in turn. A corrupt file
does not prevent reads of other files. It stays in place, because only the operator can tell whether it can be restored.
Missing files are handled by `retention`. DuckDB and Arrow decode flipped bytes without an error, so the first reader of
a file compares its bytes with the checksum in its name.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.collectors.files import Stamp, stamp_of
from logprobe.monitor.home import Home
from logprobe.monitor.store.queries import one_line
from logprobe.monitor.store.raw_files import OTHER_BYTES, has_its_bytes

_FIRST_SECONDS: Final = 5.0  # of the first look, which should find what a start finds; a footer takes 0.2 ms
_SECONDS: Final = 0.1
SAME_BYTES: Final = "logprobe_same_bytes"  # SQL function of a file's path, see `store._register_comparison`
_UNREADABLE: Final = (OSError, pa.ArrowException, ValueError, MemoryError)
# What DuckDB says of a damaged footer without naming the file.
_SIGNS: Final = ("TProtocolException", "arquet", "don't know what type", "requires two children")
UNREADABLE: Final = "raw tokens cannot be read: "  # begins what is said then
_REFUSALS: Final = ("Invalid Input Error", "IO Error")


@dataclass(frozen=True, slots=True)
class Known:
    """Interface of the known facts of archive files, shared with their readers."""

    left: dict[str, str] = field(default_factory=dict)  # path below the archive → why it is damaged or foreign
    same: dict[str, Stamp] = field(
        default_factory=dict
    )  # file → as it was when its bytes were those that it is named by


class Damaged:
    """Registry of corrupt and verified archive files. Safe to share between threads. A race costs at most a second
    read."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.known = known = Known()  # the archive keeps it as well
        self.left = known.left
        self._same = known.same
        self._last: str | None = None  # the file that was looked at last: the next look begins after it

    def fault(self, path: Path) -> str | None:
        """Return the reason why the bytes of a file are corrupt, or None if they are correct or the file is gone.

        The whole file is read at the first call and after each change, at 1 GB/s from memory. Raises `OSError`.
        """
        stamp = stamp_of(path)
        if stamp is None or self._same.get(str(path)) == stamp:
            return None
        if not has_its_bytes(path):
            return OTHER_BYTES
        self._same[str(path)] = stamp
        return None

    def require(self, paths: Iterable[str]) -> None:
        """Raise `QueryError` if one of these files (relative to the data directory) is corrupt."""
        for path in paths:
            try:
                fault = self.fault(self._home.path / path)
            except FileNotFoundError:
                continue
            except OSError as error:
                fault = one_line(error)
            if fault:
                self.note(self._home.path / path, fault)
                raise QueryError(_advice(f"{self._home.path / path}: {fault}"))

    def look(self, files: Mapping[str, tuple[int, int]]) -> None:
        """Check some of these files (path relative to the data directory → bytes and rows).

        The archive checks those in `left`, because the user may have restored them.
        """
        first = self._last is None
        deadline = time.monotonic() + (_FIRST_SECONDS if first else _SECONDS)
        paths = sorted(files)
        start = bisect_right(paths, self._last or "")
        for path in (*paths[start:], *paths[:start]):
            if (fault := fault_of(self._home.path / path, *files[path])) is not None:
                self.note(self._home.path / path, fault)
            elif not first:
                self._compare(path)
            self._last = path
            if time.monotonic() > deadline:
                return

    def _compare(self, path: str) -> None:
        """Verify a file again, because bytes on a disk can change."""
        self._same.pop(str(self._home.path / path), None)
        with suppress(QueryError):
            self.require([path])

    def note(self, path: Path, fault: str) -> None:
        """Record that a file of the archive cannot be used. `fault`: reason, for the operator."""
        self.left[path.relative_to(self._home.raw).as_posix()] = fault


def fault_of(path: Path, nbytes: int, rows: int) -> str | None:
    """Return the fault of a file by its size and footer, or None if it has none or was removed."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - a reader of an index does without it

    try:
        size = path.stat().st_size
        if size != nbytes:
            return f"{size:,} bytes instead of {nbytes:,}"
        rows_there = pq.read_metadata(path).num_rows
    except FileNotFoundError:
        return None
    except _UNREADABLE as error:
        return one_line(error)
    return None if rows_there == rows else f"{rows_there:,} rows instead of {rows:,}"


def said_of(error: BaseException, raw: Path, damaged: Damaged) -> str:
    """Return the error of a statement in one line, with the damaged file and its remedy if one is found.

    The search skips verified files below `raw` and ends after some seconds.
    """
    text = one_line(error)
    if "No such file" in text:
        return text
    if ".parquet" in text:
        return _advice(text) if text.startswith(_REFUSALS) else text
    found = _first_damaged(raw, damaged) if any(sign in text for sign in _SIGNS) else None
    return text if found is None else _advice(f"{found}: {text}")


def _advice(words: str) -> str:
    return f"{UNREADABLE}{words}; restore that file, or move it away"


def _first_damaged(raw: Path, damaged: Damaged) -> Path | None:
    """Return the first damaged file below `raw`, or None. DuckDB's error does not name it."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - likewise

    deadline = time.monotonic() + _FIRST_SECONDS
    for path in sorted(raw.glob("[!!]*/*/*.parquet")):
        try:
            pq.read_metadata(path)
            if damaged.fault(path):
                return path
        except _UNREADABLE:
            return path
        if time.monotonic() > deadline:
            break
    return None
