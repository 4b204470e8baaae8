"""The demo: recorded runs are laid down as they are; that the whole stack starts and ends cleanly is in tests/e2e/test_demo_page.py."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from exporting import export_run

from logprobe.app.demo import training
from logprobe.app.demo.show import TWIN, demo_home, lay_down
from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.monitor.recorded import RecordedRun, shifted

STEPS = 36


def record_both_sides(home: Path, run: str) -> None:
    """A run of every kind of record: both sides, gaps in them, weights, configurations, problems."""
    rng = np.random.default_rng(3)
    trainer, engine = Recorder(home, run, rank=0), Recorder(home, run, component="vllm_plugin", replica="r0")
    config = engine.config({"model": "toy", "dtype": "float32"}, kind="engine_config")
    engine.report("self_test", "recording this engine", details={"ok": True})
    for step in range(STEPS):
        names = [f"{step}-{i}" for i in range(3)]
        tokens = [rng.integers(0, 50, length) for length in (5, 3, 7)]
        rollout = [-rng.exponential(1.0, len(ids)).astype(np.float32) for ids in tokens]
        missing = [*rollout[:2], [None, *rollout[2].tolist()[1:]]]
        engine.rollout(
            sample_ids=names,
            token_ids=tokens,
            logprobs=missing,
            weight_version=[[(0, len(ids), str(step))] for ids in tokens[:2]] + [None],
            cached_prefix_tokens=[0, 4, 8],
            prompt_lengths=[4, 4, 9],
            finish_reasons=["stop", "length", "stop"],
            sampling={"temperature": 0.7, "top_p": 1.0},
            engine_config_id=config,
        )
        trainer.training(
            step=step,
            sample_ids=names,
            token_ids=tokens,
            trainer_logprobs=[np.minimum(r + 0.01, 0).astype(np.float32) for r in rollout],
            mask=[np.arange(len(ids)) > 0 for ids in tokens],
            entropy=[np.full(len(ids), 0.5, np.float32) for ids in tokens],
            rewards=[0.0, 1.0, 0.5],
            weight_version=step,
            prompt_ids=["p", "p", "q"],
            tags={"environment": "toy"},
        )
        trainer.step(step, loss=0.25, correction={"kind": "TIS", "cap": 2.0})
        trainer.weights(step + 1, step=step, applied_at=time.time(), cache_cleared=step % 2 == 0)
    for recorder in (trainer, engine):
        assert recorder.flush(120)
        recorder.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with one exported run."""
    folder = tmp_path_factory.mktemp("data")
    record_both_sides(folder / "home", "toy")
    export_run(folder / "home", "toy", folder / "runs" / "toy")
    return folder / "runs"


def test_a_run_is_laid_down_as_it_was_recorded_and_ended_then(data, tmp_path) -> None:
    original, ended = RecordedRun(data / "toy"), datetime.now(UTC) - timedelta(hours=1)
    assert lay_down(original, tmp_path / "home", ended) < ended
    again = export_run(tmp_path / "home", "toy", tmp_path / "again")
    assert again.ended == ended
    assert again.kinds == original.kinds
    for kind in original.kinds:
        moved = shifted(original.table(kind), ended - original.ended)
        assert rows(again.table(kind), again) == rows(moved, original), kind


def rows(table, recorded) -> list[str]:
    """Rows with their writers, sorted: writers whose clocks show the same are in no order."""
    kind = next(kind for kind, schema in SCHEMAS.items() if schema.names == table.column_names)
    return sorted(map(str, table.append_column("writer", recorded.writers(kind)).to_pylist()))


def test_the_twin_comes_with_logprobe(repository) -> None:
    assert RecordedRun(repository / "app" / "demo" / TWIN).run == training.TWIN == TWIN


def test_a_demo_empties_only_a_home_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with demo_home(None) as home:
        assert home.path == tmp_path / "data" / "logprobe-demo"
    assert home.path.exists(), "what was shown can be asked for afterwards"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="neither empty nor of an earlier demo"), demo_home(str(mine)):
        pass
    assert (mine / "thesis.txt").exists()
    demo = tmp_path / "demo"
    with demo_home(str(demo)) as home:
        (home.path / "old.duckdb").touch()
    assert demo.exists()
    with demo_home(str(demo)) as home:
        assert not (home.path / "old.duckdb").exists()
        with home.lock(), pytest.raises(HomeBusyError), demo_home(str(demo)):
            pass
