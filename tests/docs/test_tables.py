"""The pages of metrics, causes and other frameworks say what the declarations say today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from logprobe.monitor.diagnosis.causes import CAUSES
from logprobe.monitor.diagnosis.evidence.evidence import SLIGHT
from logprobe.monitor.diagnosis.evidence.gather import SAMPLE_TOKENS
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT
from logprobe.monitor.diagnosis.levels import ABOVE
from logprobe.monitor.metrics import CATALOG
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.peers import PEERS


@pytest.fixture(scope="module")
def tables(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", repository / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["metrics.md", "causes.md", "peers.md", "alerts.md"])
def test_a_page_has_the_tables_that_the_declarations_make(tables: ModuleType, repository: Path, name: str) -> None:
    page = (repository / "docs" / name).read_text(encoding="utf-8")
    assert tables.filled(page, tables.tables()[name]) == page, "run: python docs/tables.py"


@pytest.mark.parametrize(
    ("name", "keys", "cells"),
    [
        ("metrics.md", [metric.key for metric in CATALOG], 8),
        ("causes.md", [cause.name for cause in CAUSES], 5),
    ],
)
def test_a_table_has_every_declaration_once_in_unbroken_rows(
    tables: ModuleType, name: str, keys: list[str], cells: int
) -> None:
    rows = [line for line in "\n".join(tables.tables()[name]).splitlines() if line.startswith("| `")]
    assert sorted(key for row in rows for key in re.findall("`(.+?)`", row.split(" | ")[0])) == sorted(keys)
    assert {row.replace("\\|", "").count("|") for row in rows} == {cells}


def test_the_words_around_the_causes_have_the_limits_of_today(repository: Path) -> None:
    page = " ".join((repository / "docs" / "causes.md").read_text(encoding="utf-8").split())
    for words in (
        f"off at {SIGNIFICANT:g} standard errors",
        f"within {ABOVE:g} times the upper end",
        f"Below K3 {SLIGHT:g} nothing",
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
