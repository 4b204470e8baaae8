"""The metrics page in docs/ is what the catalog says today."""

from __future__ import annotations

from pathlib import Path

from logprobe.monitor.metrics import CATALOG
from logprobe.monitor.metrics.docs_page import page


def test_page_is_current(repository: Path) -> None:
    written = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m logprobe.monitor.metrics.docs_page > docs/metrics.md"


def test_page_has_one_unbroken_row_per_metric() -> None:
    tables = page().split("## Metrics of a pair")[1]
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [metric.key for metric in CATALOG]
    assert {row.replace("\\|", "").count("|") for row in rows} == {9}
