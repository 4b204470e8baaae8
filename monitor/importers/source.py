"""Source files, taken apart into units: a line, a row, a sample. A unit that cannot be read is one bad unit, no more."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.importers.rows import Row


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a source file. `content`: what its identity hangs on; `error`: why it has no value."""

    content: bytes
    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a unit stands: file (relative to what was asked for), and its position, from 0."""

    path: Path
    file: str
    position: int

    @property
    def sample_id(self) -> str:
        """A name for a sample whose source gives it none."""
        return f"{self.file}:{self.position + 1}"


Read: TypeAlias = Callable[[Path], Iterator[Unit]]
Parse: TypeAlias = Callable[[Any, Place], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Format:
    """What can be imported: its name, the files of a folder that hold it, and how to read and understand them."""

    name: str
    words: str
    patterns: tuple[str, ...]
    read: Read
    parse: Parse


def files(root: Path, patterns: Sequence[str], *, without: Path) -> list[tuple[Path, str]]:
    """The files to import with their names below `root`, in natural order, but none below `without`, the home itself. Raises `ConfigurationError` when there is none."""
    if root.is_file():
        return [(root, root.name)]
    found = {path for pattern in patterns for path in root.rglob(pattern) if path.is_file()}
    found = {path for path in found if not path.resolve().is_relative_to(without)}
    if not found:
        raise ConfigurationError(f"{root}: no file named {' or '.join(patterns)} there; check FORMAT and PATH")
    return sorted(((path, path.relative_to(root).as_posix()) for path in found), key=lambda item: _natural(item[1]))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def json_lines(path: Path) -> Iterator[Unit]:
    """A unit per line. A last line without an end that is no JSON yet is still being written, and no unit."""
    with path.open("rb") as file:
        for line in file:
            content = line.strip()
            try:
                value = json.loads(content)
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    yield Unit(content, error=f"no JSON ({error})" if content else "an empty line")
                continue
            is_object = isinstance(value, dict)
            yield Unit(content, value if is_object else None, None if is_object else "no JSON object")


def parquet_rows(path: Path) -> Iterator[Unit]:
    """A unit per row. Raises `ConfigurationError` when the file is no Parquet."""
    mark = file_digest(path)
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    yield Unit(mark, row)
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path}: cannot be read as Parquet ({error})") from error


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file that is written once and never appended to."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
