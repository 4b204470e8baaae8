"""A run in a home's spool → a folder of Parquet files, as `logprobe.monitor.recorded` describes it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError, SegmentError
from logprobe.collectors.spool.schema import SCHEMA_VERSION
from logprobe.collectors.spool.segments import SegmentPath, is_temporary, read_segment, run_dir
from logprobe.monitor.recorded import FORMAT, MANIFEST, WRITER, RecordedRun, read_manifest

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZSTD_LEVEL: Final = 19  # written once, read often


def export_run(
    home: Path, run: str, folder: Path, *, about: Mapping[str, Any] | None = None, overwrite: bool = False
) -> RecordedRun:
    """Write all segments of `run` that lie in the spool of `home` into `folder`, which appears as a whole or not at all.

    Args:
        home: a home whose service has not ingested the run (ingest empties the spool).
        run: name of the run.
        folder: where to; its parent is created.
        about: what else the manifest should say (command, seed, versions, cause of what can be seen, …).
        overwrite: replace `folder` when it holds an exported run.

    Raises:
        ConfigurationError: nothing to export, some of it was ingested already, or `folder` is in the way.
        SegmentError: a segment cannot be trusted; an export is complete or is none.
    """
    _refuse_unsafe_target(folder, overwrite=overwrite)
    tables = _collect(home, run)
    if not tables:
        raise ConfigurationError(
            f"run {run!r} has no segments in {run_dir(home, run)}; export before a service ingests the run, or check --home"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        staged = Path(scratch) / "run"
        staged.mkdir()
        for kind, table in tables.items():
            _write(table, staged / f"{kind}.parquet")
        manifest = _manifest(run, tables, staged, about or {})
        (staged / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        staged.rename(folder)
    return RecordedRun(folder)


def _collect(home: Path, run: str) -> dict[str, pa.Table]:
    """All rows of the run by kind, segments in the order of their first record and never against their writer's order."""
    entries: dict[str, list[tuple[datetime, pa.Table]]] = {}
    newest: dict[tuple[str, str], datetime] = {}
    numbers: dict[str, int] = {}
    for path in sorted(run_dir(home, run).glob("*/*")):  # a writer's segments sort by sequence number
        if is_temporary(path):
            raise SegmentError("truncated", f"{path}: still being written; close the recorder before exporting")
        where = SegmentPath.parse(path)
        _refuse_gap(where, after=numbers.get(where.writer, 0))
        numbers[where.writer] = where.sequence
        table = read_segment(where).table.replace_schema_metadata(None)
        key = (where.kind, where.writer)
        newest[key] = max(newest.get(key, _EPOCH), _first_time(table))
        writer = pa.array([where.writer] * table.num_rows, pa.string())
        entries.setdefault(where.kind, []).append((newest[key], table.append_column(WRITER, writer)))
    return {
        kind: pa.concat_tables([table for _, table in sorted(rows, key=_by_time)], promote_options="default")
        for kind, rows in sorted(entries.items())
    }


def _refuse_gap(where: SegmentPath, *, after: int) -> None:
    """A writer numbers its segments from 1; one that is missing was ingested already, or could not be written."""
    if where.sequence != after + 1:
        raise ConfigurationError(
            f"run {where.run!r}: segment {after + 1} of {where.writer} is no longer in the spool, probably because a service has "
            "ingested it; to export a run, record it into a home without a service"
        )


def _by_time(entry: tuple[datetime, pa.Table]) -> datetime:
    return entry[0]


def _first_time(table: pa.Table) -> datetime:
    first = pc.min(table["time"]).as_py() if "time" in table.column_names else None
    return _EPOCH if first is None else first


def _write(table: pa.Table, path: Path) -> None:
    stored = table.select([name for name in table.column_names if table[name].null_count < table.num_rows])
    leaves = {leaf: kind for field in stored.schema for leaf, kind in _leaves(field.name, field.type)}
    floats = [leaf for leaf, kind in leaves.items() if pa.types.is_float32(kind) and not leaf.startswith("advantages.")]
    pq.write_table(
        stored,
        path,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=[leaf for leaf in leaves if leaf not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
    )


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet's names of the primitive columns below `path`."""
    if pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    else:
        yield path, kind


def _manifest(run: str, tables: Mapping[str, pa.Table], staged: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    training = tables.get("training")
    tokens = pc.sum(pc.list_value_length(training["token_ids"])).as_py() if training is not None else None
    times = [
        time for table in tables.values() for time in (pc.min(table["time"]), pc.max(table["time"])) if time.is_valid
    ]
    steps = {
        step for kind in ("training", "step") if kind in tables for step in tables[kind]["step"].unique().to_pylist()
    }
    return {
        "format": FORMAT,
        "schema": SCHEMA_VERSION,
        "run": run,
        "steps": len(steps - {None}),
        "training_tokens": tokens,
        "recorded_from": min(time.as_py() for time in times).isoformat() if times else None,
        "recorded_to": max(time.as_py() for time in times).isoformat() if times else None,
        "kinds": {
            kind: {"rows": table.num_rows, "bytes": (staged / f"{kind}.parquet").stat().st_size}
            for kind, table in tables.items()
        },
        **about,
    }


def _refuse_unsafe_target(folder: Path, *, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not overwrite:
        raise ConfigurationError(f"{folder} exists; choose another folder or ask for it to be overwritten")
    if any(folder.iterdir()) if folder.is_dir() else True:
        read_manifest(folder)  # never remove a folder that is not an exported run
