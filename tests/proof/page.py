"""Tables of docs/proof.md that `make test-proof` writes, each between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from marked_page import write_between

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "proof.md"


def write(name: str, lines: Iterable[str], page: Path = PAGE) -> None:
    """Replaces what is between the markers of `name`. Raises `ValueError` when the page has none."""
    write_between(page, f"<!-- {name}: written by make test-proof -->", f"<!-- end of {name} -->", lines)
