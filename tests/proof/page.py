"""Tables of docs/proof.md that `make test-proof` writes, each between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from marked_page import write_between

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "proof.md"


def rows(name: str, page: Path = PAGE) -> dict[str, list[str]]:
    """Cells of the table's rows between the markers of `name`, by the first of them."""
    text = page.read_text(encoding="utf-8")
    text = text[text.index(f"<!-- {name}: ") : text.index(f"<!-- end of {name} -->")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return {row[0]: row for row in cells[1:]}


def write(name: str, lines: Iterable[str], page: Path = PAGE) -> None:
    """Replaces what is between the markers of `name`. Raises `ValueError` when the page has none."""
    write_between(page, f"<!-- {name}: written by make test-proof -->", f"<!-- end of {name} -->", lines)
