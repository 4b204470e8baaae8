"""A run exported to a folder comes back as it was written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from exporting import export_run

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir
from logprobe.monitor.recorded import MANIFEST, RecordedRun, shifted

RUN = "a run/with ünusual name"
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEPS = 4
GROUP = 3


def record(home: Path) -> None:
    """Four steps by a trainer and an engine, with values no other encoding than a lossless one brings back."""
    rng = np.random.default_rng(5)
    with Recorder(home, RUN, component="vllm_plugin") as engine, Recorder(home, RUN) as trainer:
        trainer.config({"learning_rate": 1e-4}, kind="trainer_config")
        for step in range(STEPS):
            lengths = rng.integers(0, 9, GROUP)
            names = [f"{step}-{index}" for index in range(GROUP)]
            tokens = [rng.integers(0, 1000, length, dtype=np.int32) for length in lengths]
            logprobs = [-rng.exponential(size=length).astype(np.float32) for length in lengths]
            for values in logprobs:
                values[:1] = np.nan
                values[1:2] = -np.inf
            trainer.weights(step, step=step - 1, applied_at=1e9 + step, cache_cleared=step % 2 == 0)
            engine.rollout(sample_ids=names, token_ids=tokens, logprobs=logprobs, weight_version=str(step))
            trainer.training(
                step=step,
                sample_ids=names,
                token_ids=tokens,
                trainer_logprobs=logprobs,
                advantages=rng.normal(size=GROUP).astype(np.float32),
                rewards=rng.normal(size=GROUP),
                tags={"environment": "sort"},
            )
            trainer.step(step, reward=rng.normal(), loss=float("nan"))


def written(home: Path, kind: str) -> list[str]:
    """Rows of `kind` in the spool, as text because NaN is not equal to itself."""
    paths = sorted(path for path in run_dir(home, RUN).glob("*/*") if SegmentPath.parse(path).kind == kind)
    return sorted(str(row) for path in paths for row in read_segment(SegmentPath.parse(path)).table.to_pylist())


@pytest.fixture
def exported(home: Path, tmp_path: Path) -> RecordedRun:
    record(home)
    return export_run(home, RUN, tmp_path / "out" / "run", about={"seed": 5})


def test_every_row_comes_back_bit_by_bit_from_plain_parquet(home: Path, exported: RecordedRun) -> None:
    assert {"training", "rollout", "step", "weights", "config"} <= set(exported.kinds)
    for kind in SCHEMAS:
        table = exported.table(kind)
        assert table.schema.equals(SCHEMAS[kind])
        assert sorted(str(row) for row in table.to_pylist()) == written(home, kind)
        assert len(exported.writers(kind)) == table.num_rows
    plain = pq.read_table(exported.folder / "training.parquet")
    assert "current_logprobs" not in plain.column_names  # nobody recorded any
    assert plain["step"].to_pylist() == [step for step in range(STEPS) for _ in range(GROUP)]
    manifest = json.loads((exported.folder / MANIFEST).read_text(encoding="utf-8"))
    assert (manifest["run"], manifest["seed"], manifest["steps"]) == (RUN, 5, STEPS)
    assert manifest["training_tokens"] == sum(map(len, exported.table("training")["token_ids"].to_pylist())) > 0
    assert manifest["kinds"]["training"]["rows"] == STEPS * GROUP
    assert (exported.run, exported.steps) == (RUN, list(range(STEPS)))


def test_a_shifted_table_moves_all_times_and_nothing_else(exported: RecordedRun) -> None:
    table = exported.table("weights")
    moved = shifted(table, timedelta(hours=3))
    assert moved.schema.equals(table.schema)
    for column in ("time", "applied_at"):
        pairs = zip(moved[column].to_pylist(), table[column].to_pylist(), strict=True)
        assert all(new - old == timedelta(hours=3) for new, old in pairs)
    assert moved["requested_at"].null_count == moved.num_rows
    assert moved.drop_columns(["time", "applied_at"]).equals(table.drop_columns(["time", "applied_at"]))


def test_a_folder_that_is_no_run_or_incomplete_is_refused_at_once(exported: RecordedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not an exported run"):
        RecordedRun(tmp_path)
    manifest = exported.folder / MANIFEST
    newer = {**exported.manifest, "format": 99}
    manifest.write_text(json.dumps(newer), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="newer logprobe"):
        RecordedRun(exported.folder)
    manifest.write_text(json.dumps(exported.manifest), encoding="utf-8")
    (exported.folder / "training.parquet").unlink()
    with pytest.raises(ConfigurationError, match="no rows of training"):
        RecordedRun(exported.folder)
