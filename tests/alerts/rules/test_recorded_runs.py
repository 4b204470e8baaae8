"""Recorded runs, brought in part by part and judged after each: which messages follow, and that healthy ones send none."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest
from recorded_home import SAMPLE_DATA, take_in

from logprobe.alerts.rules import watch
from logprobe.alerts.rules.watch import Watch
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

FOREVER = timedelta(days=36500)  # recordings are old


def told(home: Path, name: str, parts: int) -> list[tuple[str, str, str, str | None]]:
    """Messages about a run whose steps came in so many parts: newest step, state, severity now, and cause."""
    recorded = RecordedRun(SAMPLE_DATA / name)
    tables = {kind: recorded.table(kind) for kind in recorded.kinds}
    steps = sorted(set(tables["training"]["step"].to_pylist()))
    with Store.open(Home(home)) as store:
        judging = Turns(DiagnosisStage(store))
        later = lambda: datetime.now(UTC) + timedelta(seconds=5)
        alerts = Watch(store, tuple, threading.Event(), quiet=timedelta(0), clock=later)
        for part in range(parts):
            first, last = (steps[len(steps) * at // parts - (at == part + 1)] for at in (part, part + 1))
            writer = SpoolWriter(home, recorded.run, f"part-{part}")
            for kind, whole in tables.items():
                of_steps = "step" in whole.column_names and kind != "rollout"
                table = (
                    whole.filter(pc.and_(pc.greater_equal(whole["step"], first), pc.less_equal(whole["step"], last)))
                    if of_steps
                    else whole
                )
                if table.num_rows and (of_steps or part == 0):
                    writer.write(kind, table)
            take_in(store)
            for stage in (judging, alerts):
                stage.run_once()
        rows = store.query(
            "SELECT step, state, document ->> '$.level' AS level, document ->> '$.cause' AS cause FROM notifications ORDER BY number"
        )
        return [tuple(row.values()) for row in rows.to_pylist()]


# Of each message the latest step at which it may come.
@pytest.mark.parametrize(
    ("name", "parts", "expected"),
    [
        ("faults/healthy", 4, []),
        ("faults/late_growth", 5, [(103, "firing", "critical", "staleness")]),
    ],
)
def test_messages_about_recorded_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, parts: int, expected: list
) -> None:
    monkeypatch.setattr(watch, "TELL_WITHIN", FOREVER)
    found = told(home, name, parts)
    assert [rest for _, *rest in found] == [rest for _, *rest in expected]
    assert all(step <= latest for (step, *_), (latest, *_) in zip(found, expected, strict=True)), found
