"""A run that was exported to a folder: what it reads like, and what is none. From a spool and back: tests/app/test_demo.py."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from recorded_home import SAMPLE_DATA

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.monitor.recorded import MANIFEST, RecordedRun, shifted

FOLDER = SAMPLE_DATA / "faults" / "healthy"


def test_tables_have_the_columns_of_the_contract_and_times_move_alone() -> None:
    recorded = RecordedRun(FOLDER)
    assert recorded.steps == sorted(set(recorded.table("training")["step"].to_pylist()))
    assert "teacher_logprobs" not in pq.read_schema(FOLDER / "training.parquet").names  # nobody recorded any
    for kind in SCHEMAS:
        assert recorded.table(kind).schema.equals(SCHEMAS[kind]), kind
        assert len(recorded.writers(kind)) == recorded.table(kind).num_rows, kind
    table = recorded.table("weights")
    moved = shifted(table, timedelta(hours=3))
    times = ["time", "applied_at", "requested_at", "started_at", "resumed_at"]
    for name in times:
        pairs = zip(moved[name].to_pylist(), table[name].to_pylist(), strict=True)
        assert all(new is old if old is None else new - old == timedelta(hours=3) for new, old in pairs), name
    assert moved.drop_columns(times).equals(table.drop_columns(times))


def test_a_folder_that_is_no_run_or_incomplete_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not an exported run"):
        RecordedRun(tmp_path)
    manifest = Path(shutil.copytree(FOLDER, tmp_path / "run")) / MANIFEST
    known = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**known, "format": 99}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="newer logprobe"):
        RecordedRun(manifest.parent)
    manifest.write_text(json.dumps(known), encoding="utf-8")
    (manifest.parent / "training.parquet").unlink()
    with pytest.raises(ConfigurationError, match="no rows of training"):
        RecordedRun(manifest.parent)
