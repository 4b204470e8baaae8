"""Tables of the documentation have every declaration, and a place; what the pages say of causes and other frameworks is so today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from logprobe.collectors import environment
from logprobe.collectors.correction.presets import PRESETS
from logprobe.collectors.spool.schema import ROLLOUT, TRAINING
from logprobe.monitor.judging.gather import SAMPLE_TOKENS
from logprobe.monitor.judging.measures import SIGNIFICANT
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.metrics import CATALOG
from logprobe.monitor.settings import limits, settings_file


@pytest.fixture(scope="module")
def tables(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", repository / "docs" / "site" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_has_one_place(tables: ModuleType, repository: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (repository / "docs").glob("*.md")]
    assert sorted(name for page in pages for name in tables.PLACE.findall(page)) == sorted(tables.tables())


def test_a_page_gets_its_tables_and_a_name_of_none_is_refused(tables: ModuleType) -> None:
    assert tables.filled("a\n\n<!-- table: x -->\n\nb", {"x": "| 1 |"}) == "a\n\n| 1 |\n\nb"
    with pytest.raises(KeyError, match="y"):
        tables.filled("<!-- table: y -->", {"x": "| 1 |"})


@pytest.mark.parametrize(
    ("names", "keys", "cells"),
    [
        (["metrics-of-a-pair", "metrics-of-a-step"], [metric.key for metric in CATALOG], 8),
        (["causes-semantic", "causes-inference-path", "causes-objective", "causes-unknown"], list(SIGNATURES), 5),
        (["presets"], list(PRESETS), 4),
        (["limits"], [limit.name for limit in limits.ALL], 4),
        (["columns"], sorted({*TRAINING.names, *ROLLOUT.names, "segment_id", "row"}), 4),
        (["variables"], list(environment.VARIABLES), 4),
    ],
)
def test_a_table_has_every_declaration_once_in_unbroken_rows(
    tables: ModuleType, names: list[str], keys: list[str], cells: int
) -> None:
    made = tables.tables()
    rows = [line for name in names for line in made[name].splitlines()[2:]]
    assert sorted(key for row in rows for key in re.findall("`(.+?)`", row.split(" | ")[0])) == sorted(keys)
    assert {row.replace("\\|", "").count("|") for row in rows} == {cells}


def test_the_words_around_the_causes_have_the_limits_of_today(repository: Path) -> None:
    page = " ".join((repository / "docs" / "diagnosis.md").read_text(encoding="utf-8").split())
    for words in (
        f"off at {SIGNIFICANT:g} standard errors",
        f"within {number('above'):g} times the upper end",
        f"Below K3 {number('slight'):g} no distribution",
        f"at most {SAMPLE_TOKENS:,} raw tokens",
    ):
        assert words in page


def test_every_key_of_every_section_of_the_settings_is_listed(tables: ModuleType) -> None:
    assert {*tables.SETTINGS, "tokenizers"} == set(settings_file.SECTIONS)
    rows = [line.split(" | ") for line in tables.tables()["settings"].splitlines()[2:]]
    listed = [(row[0].strip("| `"), row[1].strip("`")) for row in rows]
    keys = {
        (section, key) for section, models in tables.SETTINGS.items() for model in models for key in model.model_fields
    }
    assert sorted(listed) == sorted(keys)
    assert all(row[3].strip(" |") for row in rows)
    assert len(listed) <= 45
