"""Raw tokens as Parquet: one row per sequence with list columns, one file per (run, kind) and ingest batch.

    <home>/raw/<quoted run>/<kind>/<name>-<crc32>.parquet

The name says the checksum of the bytes, as that of a segment does: Parquet readers decode flipped bytes without a word,
and a lost store must not take the checksums with it. An earlier logprobe wrote ``<name>.parquet``: whether such a file
is what was written is unknown. A file counts when it is in the store's ``raw_files`` table. Before it enters the table
a note, ``raw/!pending/<name>``, says so, and before it leaves it another one, ``<name>.leaving``: what the table does
not know and no note names was complete once, and is never removed. Log-probs are stored as float32 with
BYTE_STREAM_SPLIT and zstd level 1: 8 bytes a token with its id, and higher levels gain less than 1 %.

``raw/<run>/!incomplete.json`` says which steps of a run the raw tokens on the disk cannot measure, for making a new
store. Numbers of such a step would be of some of its sequences only; unknown is right, and a part of it is wrong.
"""

from __future__ import annotations

import io
import json
import os
import re
import uuid
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import below, fsync_folder, make_durable, replace_file
from logprobe.collectors.spool.schema import ROLLOUT, TRAINING
from logprobe.collectors.spool.segments import run_dir, run_name
from logprobe.monitor.home import Home

RAW_KINDS: Final = ("training", "rollout")

# The key of a row in the store, in front of what the collector recorded.
_KEY: Final = [("run", pa.string()), ("segment_id", pa.string()), ("row", pa.int32())]
RAW_SCHEMAS: Final[dict[str, pa.Schema]] = {
    "training": pa.schema([*_KEY, *TRAINING]),
    "rollout": pa.schema([*_KEY, *ROLLOUT]),
}

# No run is ever called so: "!" is quoted in the folder of a run. Views read by pattern, and a pattern must match
# something.
_NO_RUN: Final = "!none"
_SUFFIX: Final = ".parquet"
OTHER_BYTES: Final = "its bytes do not match the checksum in its name"
_CHECKSUM: Final = re.compile(rf"-([0-9a-f]{{8}}){re.escape(_SUFFIX)}")  # ends a name
_PENDING: Final = "!pending"
_LEAVING: Final = ".leaving"  # ends the note of a file on its way out; that of its way in goes with the next checkpoint
_UNFINISHED: Final = ".tmp"
_DEPTH: Final = 3  # raw/<run>/<kind>/<file>
_ROW_GROUP_TOKENS: Final = 1 << 20
_BLOCK: Final = 1 << 20
_PIECE: Final = 1 << 16  # bytes written at a time
_SPLIT_TYPES: Final = (pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.uint16()))
FILE: Final = "!incomplete.json"
Steps = tuple[int, int]  # the first and the last
EVERY_STEP: Final[Steps] = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class RawFile:
    """A Parquet file that has been written durably. `path` is relative to the home."""

    path: str
    nbytes: int


def raw_dir(home: Home, run: str, kind: str) -> Path:
    """Folder of one run's raw files of one kind."""
    return home.raw / run_dir(home.path, run).name / kind


def write_raw(home: Home, run: str, kind: str, table: pa.Table, tokens: int) -> RawFile:
    """Writes `table` (`RAW_SCHEMAS[kind]`) to a new file, noted as pending; when this returns it is on disk. Raises
    `OSError`."""
    folder = raw_dir(home, run, kind)
    make_durable(folder)
    path = unfinished = folder / f"{uuid.uuid4().hex}{_UNFINISHED}"
    try:
        checksum = _write(unfinished, kind, table, tokens)
        path = folder / f"{unfinished.stem}-{checksum:08x}{_SUFFIX}"
        _touch(_note(home, path))
        unfinished.rename(path)
        fsync_folder(folder)
    except OSError:
        for leftover in (unfinished, path, _note(home, path)):  # a full disk must get its space back
            leftover.unlink(missing_ok=True)
        raise
    return RawFile(home.relative(path), path.stat().st_size)


def has_checksum(path: str) -> bool:
    """Whether the name of a raw file says what its bytes have to be."""
    return _stated(path) is not None


def _stated(path: str) -> int | None:
    """CRC-32 of the bytes, by the file's name; None: it does not say."""
    match = _CHECKSUM.search(path)
    return None if match is None else int(match[1], 16)


def has_its_bytes(path: Path) -> bool:
    """Whether the bytes of a raw file are those that its name says; also if that says nothing. Raises `OSError`."""
    if (stated := _stated(path.name)) is None:
        return True
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum == stated


def read_raw(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """All of a raw file, if its bytes are those that its name says. Raises `OSError`, `pa.ArrowException`."""
    return raw_table(path.name, path.read_bytes(), schema)


def raw_table(name: str, content: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """The same of a file that has been read. Raises `pa.ArrowException`."""
    if (stated := _stated(name)) is not None and zlib.crc32(content) != stated:
        raise pa.ArrowInvalid(OTHER_BYTES)
    # What reads several files as one takes twice as long for a small one, and is needed where columns are missing.
    file = pq.ParquetFile(pa.BufferReader(content))
    if schema is None or file.schema_arrow.equals(schema):
        return file.read(use_threads=len(content) > _PIECE)
    return pq.read_table(pa.BufferReader(content), schema=schema, partitioning=None)


def note_pending(home: Home, paths: Iterable[str]) -> None:
    """Says of files (relative to the home) that they are about to leave the store. Raises `OSError`."""
    for path in paths:
        _touch(_note(home, home.path / path, _LEAVING))


def notes_of(home: Home, paths: Iterable[str]) -> list[str]:
    """The notes of files that have entered the store; all relative to the home."""
    return [home.relative(_note(home, home.path / path)) for path in paths]


def remove_files(home: Home, paths: Iterable[str]) -> None:
    """Removes files by their name relative to the home, with their notes; one that is gone already is none of our
    worries."""
    notes = home.raw / _PENDING
    for path in paths:
        place = home.path / path
        place.unlink(missing_ok=True)
        if place.suffix == _SUFFIX:
            for ending in ("", _LEAVING):
                (notes / f"{place.stem}{ending}").unlink(missing_ok=True)  # last, see `settle_pending`


def settle_pending(home: Home, registered: set[str]) -> tuple[list[str], list[str]]:
    """Ends what a killed service had begun: of the files noted as pending, those that the store does not know are
    removed.

    → the files that the store does not know although they are complete, and the folders that cannot be listed, relative
    to the home. A pending file that may be in one of these keeps its note, so that the next start continues.
    """
    files, unlisted = _files(home)
    notes = below(home.raw / _PENDING, 1)[0]
    pending = {note.stem for note in notes}
    for path in files:
        if home.relative(path) not in registered and (path.stem in pending or path.suffix == _UNFINISHED):
            path.unlink(missing_ok=True)
    settled = {path.stem for path in files} | {Path(path).stem for path in registered}
    for note in notes:  # last: killed before, the next start goes on
        if not unlisted or note.stem in settled:
            note.unlink(missing_ok=True)
    return unknown_files(home, registered)


def unknown_files(home: Home, registered: set[str]) -> tuple[list[str], list[str]]:
    """The files that the store does not know although they are complete, and the folders that cannot be listed;
    relative to the home."""
    pending = {note.stem for note in below(home.raw / _PENDING, 1)[0]}
    files, unlisted = _files(home)
    complete = {home.relative(path) for path in files if path.suffix == _SUFFIX and path.stem not in pending}
    return sorted(complete - registered), sorted(map(home.relative, unlisted))


def _files(home: Home) -> tuple[list[Path], list[Path]]:
    """The files of runs, and the folders that cannot be listed: what is in those is unknown."""
    paths, unlisted = below(home.raw, _DEPTH)
    return [path for path in paths if path.parent.parent.name != _NO_RUN], unlisted


def has_files(home: Home) -> bool:
    """Whether any file of a run is seen below ``raw/``. Raises `OSError` when that folder cannot be listed."""
    files, unlisted = _files(home)
    if home.raw in unlisted:
        next(home.raw.iterdir(), None)
    return any(path.suffix == _SUFFIX for path in files)


def _note(home: Home, path: Path, ending: str = "") -> Path:
    return home.raw / _PENDING / f"{path.stem}{ending}"


def _touch(note: Path) -> None:
    """Before what it is about, also after a power cut: with a new file's sync its name is durable."""
    make_durable(note.parent)
    with note.open("ab") as file:
        os.fsync(file.fileno())


def empty_file(home: Home, kind: str) -> Path:
    """A Parquet file of this kind without rows, to read where there is none with rows."""
    return home.raw / _NO_RUN / kind / "empty.parquet"


def write_empty_files(home: Home) -> None:
    """One file without rows per kind, so that the views work before the first and after the last real one."""
    for kind in RAW_KINDS:
        path = empty_file(home, kind)
        if not is_empty_file(path, kind):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path.with_suffix(".tmp"), kind, RAW_SCHEMAS[kind].empty_table(), 0)
            path.with_suffix(".tmp").rename(path)


def is_empty_file(path: Path, kind: str) -> bool:
    """Whether there is a whole one, and not of an earlier logprobe, whose records had other columns."""
    try:
        return bool(pq.read_schema(path).names == RAW_SCHEMAS[kind].names)
    except (OSError, pa.ArrowException, ValueError):
        return False


class _Checksummed(io.BufferedWriter):
    """A file and the checksum of what was written to it, whatever the disk makes of it."""

    crc = 0

    def write(self, data: Any, /) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return super().write(data)


def _write(path: Path, kind: str, table: pa.Table, tokens: int) -> int:
    """→ the checksum of the file."""
    # Measured: splitting the bytes of token ids is 10 times as fast as a dictionary, and smaller. Advantages are mostly
    # constant within a sequence, which zstd alone turns into nothing.
    split = [f"{field.name}.list.element" for field in RAW_SCHEMAS[kind] if _is_split(field)]
    with _Checksummed(io.FileIO(path, "wb")) as file:
        # Of a small file Arrow writes 80 pieces, and each would wait for its turn among the threads of Python.
        pieces = pa.BufferedOutputStream(pa.PythonFile(file, "w"), _PIECE)
        pq.write_table(
            table,
            pieces,
            compression="zstd",
            compression_level=1,
            use_byte_stream_split=split,
            use_dictionary=[field.name for field in table.schema if field.type == pa.string()],
            row_group_size=max(1, table.num_rows * _ROW_GROUP_TOKENS // max(tokens, 1)),
            store_schema=False,
        )
        pieces.flush()
        file.flush()
        os.fsync(file.fileno())
        return file.crc


def _is_split(field: pa.Field) -> bool:
    return field.type in _SPLIT_TYPES and field.name != "advantages"


def incomplete_steps(home: Home, run: str) -> list[Steps]:
    """Between which steps some have not all of their raw tokens."""
    steps = _noted(home, run)
    return [] if steps is None else [steps]


def note_incomplete(home: Home, run: str, first: int, last: int) -> None:
    """Widens what is noted of a run. Raises `StoreError`."""
    noted = _noted(home, run)
    wanted = widened(noted, (first, last))
    if wanted != noted:
        _write_note(_file(home, run), wanted)


def _noted(home: Home, run: str) -> Steps | None:
    """What is noted of a run; None: nothing is."""
    with suppress(OSError, ValueError, TypeError):
        first, last = json.loads(_file(home, run).read_text(encoding="utf-8"))
        return int(first), int(last)
    return None


def damaged_steps(home: Home, paths: Iterable[str]) -> dict[str, Steps]:
    """Run → between which steps raw files that cannot be read may have sequences: by their footers, or all.

    Not of rollout files: what is trained without its rollout lowers the step's coverage, and so is known to be missing.
    """
    damaged: dict[str, Steps] = {}
    for path in map(PurePosixPath, paths):
        run, kind = run_name(path.parent.parent.name), path.parent.name
        if kind == "training":
            first, last = _stated_steps(home.path / path)
            span = damaged.get(run, (first, last))
            damaged[run] = min(first, span[0]), max(last, span[1])
    return damaged


def _stated_steps(path: Path) -> Steps:
    try:
        footer = pq.read_metadata(path)
        column = footer.schema.names.index("step")
        groups = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
        return min(group.min for group in groups), max(group.max for group in groups)
    except (OSError, pa.ArrowException, ValueError, AttributeError, TypeError):
        return EVERY_STEP


def widened(one: Steps | None, other: Steps | None) -> Steps | None:
    """Both and what lies between."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _write_note(note: Path, content: Any) -> None:
    try:
        replace_file(note, json.dumps(content).encode())
    except OSError as error:
        raise StoreError(
            f"{note} cannot be written ({error.strerror}); make room below {note.parent.parent}"
        ) from error


def _file(home: Home, run: str) -> Path:
    return raw_dir(home, run, "training").parent / FILE
