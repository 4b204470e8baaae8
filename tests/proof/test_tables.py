"""The judge of the planted faults, and the tables that `make campaign NAME=proof` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """`fault_table` and `page`, which are scripts' neighbours and no package."""
    monkeypatch.syspath_prepend(str(HERE))
    import fault_table
    import page

    return fault_table, page


def document(*, score: list[str], bisect: list[str], first: str | None, smallest: list[str]) -> dict[str, Any]:
    arms = [] if first is None else [{"knob": first, "setting": "safe", "removed": 1.0, "interval": [0.99, 1.0]}]
    baseline = {"k3": 0.002, "noise_floor": 0.0}
    of_bisect = {"departs": bisect[0] if bisect else "none", "departs_all": bisect, "arms": arms, "baseline": baseline}
    return {
        "score": {"departs": score[0] if score else "none", "departs_all": score},
        "bisect": {**of_bisect, "smallest_set": smallest},
        "ran": {"on": "2026-01-02", "rules": "abc1234"},
    }


BOTH = {"score": ["engine"], "bisect": ["engine"]}


@pytest.mark.parametrize(
    ("fault", "found", "named"),
    [
        ("bf16", document(**BOTH, first="dtype", smallest=["dtype"]), True),
        ("bf16", document(score=["trainer"], bisect=["engine"], first="dtype", smallest=["dtype"]), False),
        ("bf16", document(**BOTH, first="head_dtype", smallest=["dtype"]), False),
        ("bf16", document(**BOTH, first="dtype", smallest=["dtype", "head_dtype"]), False),
        ("bf16", {**document(**BOTH, first="dtype", smallest=["dtype"]), "diagnosed": False}, False),
        ("healthy", document(score=[], bisect=[], first=None, smallest=[]), True),
        ("healthy", document(score=[], bisect=[], first="dtype", smallest=[]), False),
    ],
)
def test_a_fault_is_named_by_both_commands_first_and_exactly(modules, fault: str, found: dict, named: bool) -> None:
    table, _ = modules
    assert table.right(table.ALL[fault], found) is named


def test_a_row_says_what_was_missed_and_one_without_a_new_result_stays_as_the_page_has_it(modules) -> None:
    table, page = modules
    found = {"bf16": document(**BOTH, first="dtype", smallest=["dtype"])}
    found["kv_cache"] = document(**BOTH, first="dtype", smallest=["dtype"])
    rows = [line for line in table.lines(found, page.rows("faults")) if line.startswith("|")][2:]
    assert len(rows) == len(table.ALL)
    ran = "2026-01-02, abc1234"
    assert rows[1] == f"| engine in bfloat16 | 2.0e-3 | `dtype`: safe | yes | {ran} |"
    assert rows[2] == f"| KV cache rounded to 8 bits | 2.0e-3 | `dtype`: safe | **no** | {ran} |"
    (kept,) = (line for line in page.PAGE.read_text().splitlines() if line.startswith("| nothing | "))
    assert rows[0] == kept


def test_only_what_is_between_the_markers_is_replaced_and_the_pages_have_them(
    modules, tmp_path: Path, repository: Path
) -> None:
    _, page = modules
    file = tmp_path / "page.md"
    begin, end = "<!-- faults: written by make campaign NAME=proof -->", "<!-- end of faults -->"
    file.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n")
    for _ in range(2):
        page.write("faults", ["| new |"], file)
        assert file.read_text() == f"before\n\n{begin}\n\n| new |\n\n{end}\n\nafter\n"
    with pytest.raises(ValueError, match="article"):
        page.write("article", [], file)
    for name, file in (
        ("faults", page.PAGE),
        ("named", page.PAGE),
        ("article", page.PAGE),
        ("article", repository / "README.md"),
    ):
        before = file.read_text(encoding="utf-8")
        assert before.index(f"<!-- {name}: ") < before.index(f"<!-- end of {name} -->")
