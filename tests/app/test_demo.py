"""The demo: recorded runs are laid down as they are; that the whole stack starts and ends cleanly is in tests/e2e/test_demo_page.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from exporting import export_run
from recorded_home import SAMPLE_DATA

from logprobe.app.demo import training
from logprobe.app.demo.show import TWIN, demo_home, lay_down
from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.monitor.recorded import RecordedRun, shifted


def test_a_run_is_laid_down_as_it_was_recorded_and_ended_then(tmp_path) -> None:
    original, ended = RecordedRun(SAMPLE_DATA / "faults" / "missed_weight_sync"), datetime.now(UTC) - timedelta(hours=1)
    assert lay_down(original, tmp_path / "home", ended) < ended
    again = export_run(tmp_path / "home", original.run, tmp_path / "again")
    assert again.ended == ended
    assert {"rollout", "training", "step", "weights", "config", "health"} <= set(again.kinds) == set(original.kinds)
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
