"""docs/import-export.md: its example reads the archive with Polars and with DuckDB."""

import subprocess
import sys

import pytest
from recorded_home import feed
from segments import trained

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

STEPS = 3


def example(repository, place):
    script = repository / "docs" / "examples" / "raw_tokens.py"
    done = subprocess.run([sys.executable, str(script), str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: {int(step): float(gap) for who, step, gap in lines if who == name} for name in ("polars", "duckdb")}


def test_the_example_reads_what_the_metrics_say(home, repository):
    with Store.open(Home(home)) as store:
        feed(store, training=[trained(f"s{step}-{i}", step, n=4 + i) for step in range(STEPS) for i in range(3)])
        wanted = store.query(
            "SELECT step, value FROM metrics WHERE metric = 'backend.logprob_abs_diff_mean'"
        ).to_pylist()
    expected = {row["step"]: pytest.approx(row["value"], rel=1e-6) for row in wanted}
    assert len(expected) == STEPS
    assert example(repository, home / "archive" / "run") == {"polars": expected, "duckdb": expected}
