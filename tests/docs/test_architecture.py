"""What the documentation names exists, also where architecture.md and the recipes say that it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`((?:collectors|monitor|alerts|app|tests|docs|sample_data)/[\w/.]*)`")
DECLARED = re.compile(r"`(\w+)` in\s+`([\w/]+\.py)`")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def names_of(file: Path) -> set[str]:
    """Names that a module defines: its constants, and classes and functions wherever they are."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return defined | {target.id for target in targets if isinstance(target, ast.Name)}


def rows() -> list[list[str]]:
    table = page("docs/architecture.md").split("|---|---|---|\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_files_that_are_named_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    named = [(file.name, path) for file in pages for path in NAMED.findall(file.read_text(encoding="utf-8"))]
    assert [(name, path) for name, path in named if not (ROOT / path).exists()] == []
    assert sum(name in {"architecture.md", "CONTRIBUTING.md"} for name, _ in named) >= 60


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_what_is_declared_is_where_they_say(name: str) -> None:
    declared = DECLARED.findall(page(name))
    assert len(declared) >= 5
    assert [(what, path) for what, path in declared if what not in names_of(ROOT / path)] == []


def test_the_table_has_a_place_for_each_thing_to_add() -> None:
    assert len(rows()) >= 10
    for what, declared, then in rows():
        assert NAMED.search(declared), what
        assert NAMED.search(then) or what in {"a table, a query", "a channel"} or "beside" in then, what
