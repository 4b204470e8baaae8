"""docs/raw-tokens.md: its table names every column, and its example reads the files with Polars and with DuckDB."""

import re
import subprocess
import sys

import pytest
from recorded_home import feed
from segments import trained

from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import RAW_SCHEMAS
from logprobe.monitor.store.store import Store

STEPS = 3


@pytest.mark.parametrize("kind", RAW_SCHEMAS)
def test_every_column_is_documented(repository, kind):
    page = (repository / "docs" / "raw-tokens.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {kind}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(RAW_SCHEMAS[kind].names) - {"run"}


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
