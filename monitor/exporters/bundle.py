"""Bundle ``run.logprobe``: a run in one file, for import into another logprobe.

A bundle is a ZIP archive. ``MANIFEST.json`` has format, schema, run, the members with their SHA-256, and the omissions.
``records/<kind>.parquet`` has the collectors' records in the columns of the wire contract. ``metrics.parquet`` has the
computed steps. ``diagnosis.json``, ``alerts.json`` and ``actions.json`` have the results about the run. An import loads
the records and recomputes the rest.

The reader treats bundles as untrusted. It opens only members of known kinds that the manifest names. Bundles are not
compressed, so members are read in place, and the size of the file bounds theirs.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS
from logprobe.monitor import queries
from logprobe.monitor.exporters.table_files import extent_of, replaced, require_all, steps_of
from logprobe.monitor.importers.reading import small_batches
from logprobe.monitor.reader import Reader

FORMAT: Final = 1
MANIFEST: Final = "MANIFEST.json"
_RECORDS: Final = {"step": "step", "weights": "weight", "config": "config", "health": "health"}
_SEGMENTS: Final = 64  # read at a time
_MANIFEST_BYTES: Final = 1 << 20
_BLOCK: Final = 1 << 20
# Bytes of a member's own header before its name; the last four are the lengths of name and extra field.
_HEAD: Final = 30
_UNREADABLE: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
    zipfile.BadZipFile,
    NotImplementedError,
)


class Member(TypedDict):
    """A file in a bundle."""

    sha256: str
    bytes: int
    rows: int


class LeftOut(TypedDict):
    """Sequences without raw tokens, of which the bundle has only the computed metrics."""

    training_sequences: int
    rollout_sequences: int


class Manifest(TypedDict):
    """Manifest of a bundle. `format`, `schema`: versions of the bundle and of the wire contract. `logprobe`: version of
    the writer.
    """

    format: int
    schema: int
    run: str
    logprobe: str
    files: dict[str, Member]
    left_out: LeftOut


def export_bundle(reader: Reader, run: str, path: Path, *, version: str) -> Manifest:
    """Write the bundle and return its manifest.

    Raises `ConfigurationError` if the run is unknown, is deleted during the export, or `path` is not writable.
    """
    extent = extent_of(reader, run)
    steps = steps_of(reader, run)
    files: dict[str, Member] = {}
    with replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        for kind in ("training", "rollout"):
            _add_parquet(archive, files, f"records/{kind}.parquet", SCHEMAS[kind], _raw(reader, run, kind))
        for kind, table in _RECORDS.items():
            records = reader.read(f"export_{table}_records", run=run)
            _add_parquet(archive, files, f"records/{kind}.parquet", SCHEMAS[kind], [records])
        _add_parquet(archive, files, "metrics.parquet", steps.schema, [steps])
        for name, query in (
            ("diagnosis", "diagnosis_latest"),
            ("alerts", "alert_list"),
            ("actions", "controller_actions"),
        ):
            rows = [row for row in reader.read(query, run=run).to_pylist() if row.get("run", run) == run]
            _add(archive, files, f"{name}.json", json.dumps(rows, default=str, indent=1).encode(), len(rows))
        manifest: Manifest = {
            "format": FORMAT,
            "schema": SCHEMA_VERSION,
            "run": run,
            "logprobe": version,
            "files": files,
            "left_out": _left_out(reader, run, files),
        }
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
        require_all(reader, run, extent)
    return manifest


def _raw(reader: Reader, run: str, kind: str) -> Iterator[pa.Table]:
    segments = queries.export_segments(reader, run=run).to_pylist()
    names = [row["segment_id"] for row in segments if row["kind"] == kind]
    for first in range(0, len(names), _SEGMENTS):
        yield reader.read(f"export_{kind}", run=run, segments=names[first : first + _SEGMENTS])


def _left_out(reader: Reader, run: str, files: Mapping[str, Member]) -> LeftOut:
    segments = queries.export_segments(reader, run=run).to_pylist()
    ingested = {
        kind: sum(row["rows"] for row in segments if row["kind"] == kind)
        for kind in ("training", "rollout", "statistics")
    }
    kept = {kind: files[f"records/{kind}.parquet"]["rows"] for kind in ("training", "rollout")}
    return {
        "training_sequences": ingested["training"] + ingested["statistics"] - kept["training"],
        "rollout_sequences": ingested["rollout"] - kept["rollout"],
    }


def _add_parquet(
    archive: zipfile.ZipFile, files: dict[str, Member], name: str, schema: pa.Schema, tables: Iterable[pa.Table]
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        rows = 0
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(_conform(table, schema))
                rows += table.num_rows
        file.seek(0)
        digest, size = hashlib.sha256(), 0
        with archive.open(name, "w", force_zip64=True) as member:  # stored: Parquet is compressed already
            while block := file.read(_BLOCK):
                member.write(block)
                digest.update(block)
                size += len(block)
    files[name] = {"sha256": digest.hexdigest(), "bytes": size, "rows": rows}


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of the schema, null for columns that the store lacks."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _add(archive: zipfile.ZipFile, files: dict[str, Member], name: str, content: bytes, rows: int) -> None:
    archive.writestr(name, content)
    files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "rows": rows}


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a bundle. Raises `ConfigurationError` for another file or a bundle of a newer logprobe."""
    try:
        with _opened(path) as archive:
            archive.getinfo(MANIFEST)
            with _member(path, archive, MANIFEST) as member:
                content = member.read(_MANIFEST_BYTES)
            manifest: Manifest = json.loads(content)
            files, newer = dict(manifest["files"]), manifest["format"] > FORMAT or manifest["schema"] > SCHEMA_VERSION
            run = manifest["run"]
    except ConfigurationError:
        raise
    except _UNREADABLE as error:
        raise ConfigurationError(
            f"{path}: not a logprobe bundle ({type(error).__name__}: {error}); export the run again"
        ) from error
    if newer:
        raise ConfigurationError(f"{path}: written by a newer logprobe; upgrade")
    if not isinstance(run, str) or not run or not files:
        raise ConfigurationError(f"{path}: not a logprobe bundle (it has no run name); export it again")
    return manifest


def records(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Read the records of a bundle, each with its kind. Raises `ConfigurationError` if a member differs from the
    manifest."""
    files = read_manifest(path)["files"]
    with _opened(path) as archive:
        for kind, schema in SCHEMAS.items():
            name = f"records/{kind}.parquet"
            if name not in files:
                continue
            with _member(path, archive, name) as member:
                _check(path, name, files[name], member)
                try:
                    yield from ((kind, row) for row in _rows(member, schema))
                except pa.ArrowMemoryError:
                    raise
                except pa.ArrowException as error:
                    raise ConfigurationError(
                        f"{path}: {name} cannot be read as Parquet ({error}); copy the file again"
                    ) from error


class _Part(io.RawIOBase):
    """Bytes [start, start + size) of a file, which it closes. A single read may take at most `most` bytes."""

    def __init__(self, file: BinaryIO, start: int, size: int, most: int | None = None) -> None:
        self._file, self._start, self._size, self._place, self._most = file, start, size, 0, most

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence])
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._place)
        wanted = left if size is None or size < 0 else min(size, left)
        if self._most is not None and wanted > self._most:
            raise zipfile.BadZipFile("its table of contents is too large")
        self._file.seek(self._start + self._place)
        content = self._file.read(wanted)
        self._place += len(content)
        return content

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive. Its member list is read whole, so its length is limited like a manifest's."""
    with _Part(path.open("rb"), 0, path.stat().st_size, _MANIFEST_BYTES) as file, zipfile.ZipFile(file) as archive:
        yield archive


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> _Part:
    """Return a member for reading in place. Raises `ConfigurationError` if the member is compressed or missing."""
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise ConfigurationError(f"{path}: {name} is compressed, which bundles never are; export the run again")
        file = path.open("rb")
        file.seek(info.header_offset)
        head = file.read(_HEAD)
        start = info.header_offset + _HEAD + sum(struct.unpack("<HH", head[-4:]))
        return _Part(file, start, info.file_size)
    except (KeyError, OSError, struct.error) as error:
        raise ConfigurationError(f"{path}: {name} cannot be read ({error}); copy the file again") from error


def _check(path: Path, name: str, stated: Member, member: _Part) -> None:
    digest = hashlib.sha256()
    while block := member.read(_BLOCK):
        digest.update(block)
    if digest.hexdigest() != stated["sha256"]:
        raise ConfigurationError(f"{path}: {name} does not match the manifest (SHA-256); copy the file again")


def _rows(member: _Part, schema: pa.Schema) -> Iterator[dict[str, object]]:
    with pq.ParquetFile(member) as file:
        for batch in small_batches(file):
            yield from _conform(pa.Table.from_batches([batch]), schema).to_pylist()
