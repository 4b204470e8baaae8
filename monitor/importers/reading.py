"""Reads imported files, and takes them apart, in a separate process, which may take so much memory and cannot write a
file.

Parquet, ZIP and pickles can claim, and sometimes hold, a million times their own size; only the kernel stops all of
their readers. What comes out is counted here: a file that expands too far is refused, whatever it says of itself.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, Self

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, MissingExtraError
from logprobe.collectors.health import LOGGER
from logprobe.monitor import limits
from logprobe.monitor.importers.source import Piece, Unit, Wanted

FRAME: Final = struct.Struct("<cQ")  # kind, bytes that follow
CONTENT, END, REFUSED, MISSING, MEMORY = b"c", b"e", b"r", b"x", b"m"
# One thread and the system's allocator: what is reserved for later would count as taken.
_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


class Reading:
    """The process that reads files of one format; a context manager. Starts it with the first file."""

    def __init__(self, form: str) -> None:
        """`form`: a name of `formats.FORMATS`."""
        self.form = form
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] | None = None

    def pieces(self, wanted: Wanted) -> Iterator[Piece]:
        """The pieces of a file that are asked for.

        Raises:
            ConfigurationError: it cannot be read, needs too much memory, or expands too far.
            MissingExtraError: a package that its format needs is not installed.
            OSError: it is not there.
        """
        path = wanted.path.absolute()
        return self._answers(path, {"wanted": {**asdict(wanted), "path": str(path)}})

    def table(self, path: Path) -> pa.Table:
        """The rows of a recorded run's Parquet file. Raises as `pieces` does."""
        parts = []
        unit: Unit
        for unit in self._answers(path.absolute(), {"wanted": None}):
            if unit.error is not None:
                raise ConfigurationError(f"{path}: {unit.error}")
            parts.append(pa.ipc.open_stream(unit.value).read_all())
        return pa.concat_tables(parts)

    def _answers(self, path: Path, asked: dict[str, object]) -> Iterator[Any]:
        most = max(limits.IMPORT_FREE.value, limits.IMPORT_EXPANSION.value * path.stat().st_size)
        request = {**asked, "form": self.form, "path": str(path), "most": most, "memory": limits.IMPORT_MEMORY.value}
        sending, receiving = self._pipes()
        sending.write(json.dumps(request).encode() + b"\n")
        sending.flush()
        received = 0
        while (frame := _frame(receiving)) is not None:
            kind, content = frame
            if kind == END:
                return
            if kind != CONTENT:
                raise _error(kind, content.decode(), path)
            received += len(content)
            if received > most:
                raise expanded(path, most)
            yield pickle.loads(content)  # noqa: S301 - written by our own process, from values that it had read
        raise _error(MEMORY, "", path)  # the kernel or an allocator ended it

    def close(self) -> None:
        """Ends the process, also in the middle of a file."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None:
            self._process = subprocess.Popen(
                # -P: never modules of the folder that somebody happens to be in, such as the one with the download.
                [sys.executable, "-P", "-m", "logprobe.monitor.importers.reading_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if LOGGER.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
            )
            self._end = weakref.finalize(self, _kill, self._process)
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018, S101 - asked for above
        return self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def expanded(path: Path, most: int) -> ConfigurationError:
    """The error that says a file gave more than `most` bytes."""
    return limits.IMPORT_EXPANSION.exceeded(
        f"{path} has {path.stat().st_size:,} bytes and expands to more than {most:,}"
    )


def _frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Kind and content of what comes next; None: the process is gone."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    kind, size = FRAME.unpack(head)
    content = stream.read(size)
    return (kind, content) if len(content) == size else None


def _error(kind: bytes, words: str, path: Path) -> Exception:
    if kind == MEMORY:
        return limits.IMPORT_MEMORY.exceeded(f"{path}: reading it took more memory than allowed")
    return MissingExtraError(words) if kind == MISSING else ConfigurationError(words)
