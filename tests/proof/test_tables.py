"""The judge of engines that are wrong, and the tables of tests/RESULTS.md that campaigns write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts beside this file are no package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def found(*named: str, departs: str = "engine", scored: str | None = None) -> dict[str, Any]:
    """What a bisection names, and which side it and scoring alone say to depart."""
    of_bisect, of_score = ({"departs": side, "departs_all": [side]} for side in (departs, scored or departs))
    return {**of_bisect, "scored": of_score, "smallest_set": list(named)}


@pytest.mark.parametrize(
    ("fault", "document", "wrong"),
    [
        ("bf16", found("dtype"), ""),
        ("bf16", found("dtype", "head_dtype"), "WRONG SETTING dtype, head_dtype"),
        ("bf16", found("dtype", departs="trainer"), "wrong side trainer"),
        ("bf16", found("dtype", scored="trainer"), "wrong side trainer"),
        ("bf16", found(), "not named: dtype"),
        ("raw-trainer-bf16", found("logprobs_mode"), "not named: trainer.dtype"),
        ("bf16-theta", found(), ""),
        ("theta-unrecorded", found(departs="engine_state", scored="unknown"), ""),
        ("healthy-llama", found(departs="none"), ""),
        ("healthy-llama", found("dtype", departs="none"), "WRONG SETTING dtype"),
    ],
)
def test_a_wrong_setting_weighs_more_than_a_wrong_side_and_that_more_than_none(
    fault: str, document: dict[str, Any], wrong: str
) -> None:
    import engine_faults

    assert engine_faults.judged(engine_faults.FAULTS[fault], document) == wrong


def test_a_row_without_a_new_result_stays_as_the_page_has_it(tmp_path: Path) -> None:
    import named_table
    import page

    kept = [line for line in page.PAGE.read_text().splitlines() if line.startswith(("| trainers |", "| engines |"))]
    assert [*named_table.lines(tmp_path, page.rows("named"))] == [*named_table.HEADER, *kept]


def test_only_what_is_between_the_markers_is_replaced_and_the_pages_have_them(tmp_path: Path, repository: Path) -> None:
    import page

    file = tmp_path / "page.md"
    begin, end = "<!-- named: written by make campaign NAME=named -->", "<!-- end of named -->"
    file.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n")
    for _ in range(2):
        page.write("named", ["| new |"], file)
        assert file.read_text() == f"before\n\n{begin}\n\n| new |\n\n{end}\n\nafter\n"
    with pytest.raises(ValueError, match="article"):
        page.write("article", [], file)
    for name, file in (("named", page.PAGE), ("article", page.PAGE), ("article", repository / "README.md")):
        before = file.read_text(encoding="utf-8")
        assert before.index(f"<!-- {name}: ") < before.index(f"<!-- end of {name} -->")
