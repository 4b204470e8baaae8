"""Each situation of the second author is judged as its file allows; those in `open.yaml` are not yet, for the reason that stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from judging.second.checking import looks

HERE = Path(__file__).parent
OPEN: dict[str, str] = yaml.safe_load((HERE / "open.yaml").read_text(encoding="utf-8")) or {}
CASES = sorted((HERE / "cases").glob("*.yaml"))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            p, id=p.stem, marks=[pytest.mark.xfail(strict=True, reason=OPEN[p.stem])] if p.stem in OPEN else []
        )
        for p in CASES
    ],
)
def test_situation(path: Path) -> None:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    wrong = {at: differs for at, _, differs in looks(case) if differs}
    assert not wrong, f"{case['about']}: {wrong}"


def test_what_is_open_exists() -> None:
    assert set(OPEN) <= {path.stem for path in CASES}
