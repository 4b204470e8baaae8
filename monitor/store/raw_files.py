"""Records with token lists, as archive files contain them and statements read them.

    <home>/archive/<quoted run>/<kind>/<checksum>.parquet

A file counts if the store's ``raw_files`` table lists it. Parquet readers decode flipped bytes without an error, so the
first reader of a file compares its bytes with the checksum in its name.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.files import make_durable
from logprobe.collectors.spool.schema import ROLLOUT, TRAINING
from logprobe.monitor.home import Home

NAME: Final = re.compile(r"([0-9a-f]{32})\.parquet")  # of a file of the archive
RAW_KINDS: Final = ("training", "rollout")

# The key of a row in the store, in front of what the collector recorded. The run is that of the file's folder.
_KEY: Final = [("run", pa.string()), ("segment_id", pa.string()), ("row", pa.int32())]
RAW_SCHEMAS: Final[dict[str, pa.Schema]] = {
    "training": pa.schema([*_KEY, *TRAINING]),
    "rollout": pa.schema([*_KEY, *ROLLOUT]),
}

# No run is ever called so: "!" is quoted in the folder of a run. Views read by pattern, and a pattern must match
# something.
_NO_RUN: Final = "!none"
OTHER_BYTES: Final = "its bytes do not match the checksum in its name"
_BLOCK: Final = 1 << 20


def has_its_bytes(path: Path) -> bool:
    """Return whether the bytes of an archive file match the checksum in its name. Raises `OSError`."""
    match = NAME.fullmatch(path.name)
    checksum = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return match is not None and match[1] == checksum.hexdigest()


def empty_file(home: Home, kind: str) -> Path:
    """Return the path of the empty Parquet file of a kind, which is read if no other file exists."""
    return home.raw / _NO_RUN / kind / "empty.parquet"


def write_empty_files(home: Home) -> None:
    """Write one empty file per kind, so that the views always find a file."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - a reader does without it

    for kind in RAW_KINDS:
        path = empty_file(home, kind)
        if not is_empty_file(path, kind):
            make_durable(path.parent)
            unfinished = path.with_suffix(".tmp")
            pq.write_table(empty_rows(kind), unfinished, store_schema=False)
            unfinished.rename(path)


def is_empty_file(path: Path, kind: str) -> bool:
    """Return whether `path` is a complete empty file with the current columns."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - likewise

    try:
        return bool(pq.read_schema(path).names == _columns(kind).names)
    except (OSError, pa.ArrowException, ValueError):
        return False


def empty_rows(kind: str) -> pa.Table:
    """Return an empty table with the columns of a file of this kind."""
    return _columns(kind).empty_table()


def _columns(kind: str) -> pa.Schema:
    """Return the columns of a file. The run is not one of them."""
    return pa.schema(list(RAW_SCHEMAS[kind])[1:])
