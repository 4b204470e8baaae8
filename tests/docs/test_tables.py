"""Tables of the documentation have every declaration, and a place; what the pages say of causes and other frameworks is so today."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from logprobe.app.surface.commands import SECTIONS
from logprobe.collectors.correction.presets import PRESETS
from logprobe.monitor import limits
from logprobe.monitor.judging.gather import SAMPLE_TOKENS
from logprobe.monitor.judging.measures import SIGNIFICANT
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.metrics import CATALOG
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.peers import PEERS


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
        (["commands"], [name for section in SECTIONS.values() for name in section], 3),
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
    page = " ".join((repository / "docs" / "causes.md").read_text(encoding="utf-8").split())
    for words in (
        f"off at {SIGNIFICANT:g} standard errors",
        f"within {number('above'):g} times the upper end",
        f"Below K3 {number('slight'):g} no distribution",
        f"at most {SAMPLE_TOKENS:,} raw tokens",
    ):
        assert words in page


def test_every_framework_has_a_section_and_its_differences_name_metrics_that_exist(repository: Path) -> None:
    page = (repository / "docs" / "peers.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE)[1:] == list(PEERS)
    assert re.findall(r"^\| \[(.+?)\]", page, re.MULTILINE) == list(PEERS)
    named = set(re.findall(r"\b(?:backend|update|total|reference)\.\w+", page))
    assert named
    assert named <= set(KEYS)


def test_keys_of_other_frameworks_that_the_page_names_are_logged(repository: Path) -> None:
    batches = json.loads(gzip.decompress((repository / "tests" / "data" / "peer_odd.json.gz").read_bytes()))
    logged = dict.fromkeys(PEERS, "")
    for view in (view for batch in batches for view in batch["views"]):
        logged[view["peer"]] += "".join(f"/{key}\n" for key in view["metrics"])
    for section in (repository / "docs" / "peers.md").read_text(encoding="utf-8").split("\n## ")[2:]:
        first_cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
        keys = {key for cell in first_cells for key in re.findall(r"`(\w[\w/]*)`", cell)}
        assert keys
        assert {key for key in keys if f"/{key}\n" not in logged[section.partition("\n")[0]]} == set()
