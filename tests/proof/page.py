"""Tables of tests/RESULTS.md that commands write, each between two markers, and by what a row was made."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from marked_page import write_between

RULES: Final = ("monitor/proof", "monitor/judging/distribution.py")
PAGE: Final = Path(__file__).resolve().parents[1] / "RESULTS.md"


def ran() -> dict[str, str]:
    """Today, and the commit that last changed what a proof rests on."""
    command = ["git", "log", "-1", "--format=%h", "--", *RULES]
    done = subprocess.run(command, cwd=PAGE.parents[1], check=False, capture_output=True, text=True)
    return {"on": f"{datetime.now(UTC):%Y-%m-%d}", "rules": done.stdout.strip()}


def rows(name: str, page: Path = PAGE) -> dict[str, list[str]]:
    """Cells of the table's rows between the markers of `name`, by the first of them."""
    text = page.read_text(encoding="utf-8")
    text = text[text.index(f"<!-- {name}: ") : text.index(f"<!-- end of {name} -->")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return {row[0]: row for row in cells[1:]}


def write(name: str, lines: Iterable[str], page: Path = PAGE) -> None:
    """Replaces what is between the markers of `name`. Raises `ValueError` when the page has none."""
    text = page.read_text(encoding="utf-8")
    begin = next((line for line in text.splitlines() if line.startswith(f"<!-- {name}: ")), f"<!-- {name}: … -->")
    write_between(page, begin, f"<!-- end of {name} -->", lines)
