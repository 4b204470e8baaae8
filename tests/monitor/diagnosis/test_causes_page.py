"""The page of causes in docs/ is what the declarations say today."""

from __future__ import annotations

from pathlib import Path

from logprobe.monitor.diagnosis.causes import CAUSES
from logprobe.monitor.diagnosis.docs_page import page


def test_page_is_current(repository: Path) -> None:
    written = (repository / "docs" / "causes.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m logprobe.monitor.diagnosis.docs_page > docs/causes.md"


def test_page_has_one_unbroken_row_per_cause() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [cause.name for cause in CAUSES]
    assert {row.replace("\\|", "").count("|") for row in rows} == {5}
