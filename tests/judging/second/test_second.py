"""Each situation of the second author is judged as its file allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from judging.second.checking import looks

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_situation(path: Path) -> None:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    wrong = {at: differs for at, _, differs in looks(case) if differs}
    assert not wrong, f"{case['about']}: {wrong}"
