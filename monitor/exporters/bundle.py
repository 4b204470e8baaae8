"""A run as one file that another logprobe opens: ``run.logprobe``.

A ZIP archive with ``MANIFEST.json`` (format, schema, run, what is in it with its SHA-256, what could not be), ``records/<kind>.parquet``
(what the collectors wrote, as the wire contract names it), ``metrics.parquet`` (the steps as computed here) and what was said of the
run: ``diagnosis.json``, ``alerts.json``, ``actions.json``. Importing it brings the records, and computes the rest anew.

Reading trusts nothing: only members that the manifest names, of known kinds, are opened; none is unpacked under a name of its own, none
beyond the size that the manifest states.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.schema import SCHEMA_VERSION, SCHEMAS
from logprobe.monitor.exporters.table_files import replaced, steps_of
from logprobe.monitor.importers.rows import Row
from logprobe.monitor.importers.source import Place, Unit
from logprobe.monitor.reader import Reader

FORMAT: Final = 1
MANIFEST: Final = "MANIFEST.json"
_RECORDS: Final = {"step": "step", "weights": "weight", "config": "config", "health": "health"}
_SEGMENTS: Final = 64  # read at a time
_MANIFEST_BYTES: Final = 1 << 20
_BLOCK: Final = 1 << 20


def export_bundle(reader: Reader, run: str, path: Path, *, version: str) -> dict[str, Any]:
    """Writes the bundle; returns its manifest. Raises `ConfigurationError` when the run is not known or `path` not writable."""
    steps = steps_of(reader, run)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA_VERSION,
        "run": run,
        "logprobe": version,
        "files": {},
    }
    with replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        for kind in ("training", "rollout"):
            _add_parquet(archive, manifest, f"records/{kind}.parquet", SCHEMAS[kind], _raw(reader, run, kind))
        for kind, table in _RECORDS.items():
            records = reader.read(f"export_{table}_records", run=run)
            _add_parquet(archive, manifest, f"records/{kind}.parquet", SCHEMAS[kind], [records])
        _add_parquet(archive, manifest, "metrics.parquet", steps.schema, [steps])
        for name, query in (
            ("diagnosis", "diagnosis_latest"),
            ("alerts", "alert_list"),
            ("actions", "controller_actions"),
        ):
            rows = _rows_of(reader, query, run)
            _add(archive, manifest, f"{name}.json", json.dumps(rows, default=str, indent=1).encode(), len(rows))
        manifest["left_out"] = _left_out(reader, run, manifest)
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
    return manifest


def _rows_of(reader: Reader, query: str, run: str) -> list[dict[str, Any]]:
    return [row for row in reader.read(query, run=run).to_pylist() if row.get("run", run) == run]


def _raw(reader: Reader, run: str, kind: str) -> Iterator[pa.Table]:
    segments = reader.read("export_segments", run=run).to_pylist()
    names = [row["segment_id"] for row in segments if row["kind"] == kind]
    for first in range(0, len(names), _SEGMENTS):
        yield reader.read(f"export_{kind}", run=run, segments=names[first : first + _SEGMENTS])


def _left_out(reader: Reader, run: str, manifest: dict[str, Any]) -> dict[str, int]:
    """Sequences whose raw tokens are not kept any more, or never were: of these only the computed metrics travel."""
    segments = reader.read("export_segments", run=run).to_pylist()
    known = {
        kind: sum(row["rows"] for row in segments if row["kind"] == kind)
        for kind in ("training", "rollout", "statistics")
    }
    kept = {kind: manifest["files"][f"records/{kind}.parquet"]["rows"] for kind in ("training", "rollout")}
    return {
        "training_sequences": known["training"] + known["statistics"] - kept["training"],
        "rollout_sequences": known["rollout"] - kept["rollout"],
    }


def _add_parquet(
    archive: zipfile.ZipFile, manifest: dict[str, Any], name: str, schema: pa.Schema, tables: Iterable[pa.Table]
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
    manifest["files"][name] = {"sha256": digest.hexdigest(), "bytes": size, "rows": rows}


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The schema's columns; one that the store does not have is null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _add(archive: zipfile.ZipFile, manifest: dict[str, Any], name: str, content: bytes, rows: int) -> None:
    archive.writestr(name, content)
    manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "rows": rows}


def read_manifest(path: Path) -> dict[str, Any]:
    """What a bundle says of itself. Raises `ConfigurationError` when it is none, or of a newer logprobe."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(MANIFEST) as member:
            manifest = dict(json.loads(member.read(_MANIFEST_BYTES)))
            files, newer = dict(manifest["files"]), manifest["format"] > FORMAT or manifest["schema"] > SCHEMA_VERSION
            run = manifest["run"]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ConfigurationError(f"{path}: no bundle of logprobe ({type(error).__name__}: {error})") from error
    if newer:
        raise ConfigurationError(f"{path}: written by a newer logprobe; upgrade")
    if not isinstance(run, str) or not run or not files:
        raise ConfigurationError(f"{path}: no bundle of logprobe (it names no run)")
    return manifest


def records(path: Path) -> Iterator[Unit]:
    """A unit per record. Raises `ConfigurationError` when a member is missing or not what the manifest says."""
    files = read_manifest(path)["files"]
    with zipfile.ZipFile(path) as archive:
        for kind, schema in SCHEMAS.items():
            name = f"records/{kind}.parquet"
            if name not in files:
                continue
            with tempfile.TemporaryFile() as copy:
                _copy(path, archive, name, files[name], copy)
                mark = str(files[name]["sha256"]).encode()
                try:
                    yield from (Unit(mark, (kind, row)) for row in _rows(copy, schema))
                except pa.ArrowException as error:
                    raise ConfigurationError(f"{path}: {name} cannot be read as Parquet ({error})") from error


def record(value: tuple[str, dict[str, Any]], place: Place) -> Iterable[Row]:
    """The row as it stands."""
    del place
    yield value


def _copy(path: Path, archive: zipfile.ZipFile, name: str, stated: dict[str, Any], copy: IO[bytes]) -> None:
    digest, left = hashlib.sha256(), int(stated["bytes"]) + 1  # one more shows that there is more
    try:
        with archive.open(name) as member:
            while left and (block := member.read(min(_BLOCK, left))):
                digest.update(block)
                copy.write(block)
                left -= len(block)
    except (KeyError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise ConfigurationError(f"{path}: {name} cannot be read ({error}); copy the file again") from error
    if digest.hexdigest() != stated["sha256"]:
        raise ConfigurationError(f"{path}: {name} is not what the manifest says (SHA-256); copy the file again")


def _rows(copy: IO[bytes], schema: pa.Schema) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(copy) as file:
        for batch in file.iter_batches(batch_size=256):
            yield from _conform(pa.Table.from_batches([batch]), schema).to_pylist()
