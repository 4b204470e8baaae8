"""What the documentation names exists, also where architecture.md and the recipes say that it is; the module map names every module."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("collectors", "monitor", "alerts", "app")
NAMED = re.compile(r"`((?:collectors|monitor|alerts|app|tests|docs|sample_data)/[\w/.]*)`")
DECLARED = re.compile(r"`(\w+)` in\s+`([\w/]+\.py)`")


@pytest.fixture(scope="module")
def modules() -> ModuleType:
    spec = importlib.util.spec_from_file_location("modules", ROOT / "docs" / "site" / "modules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_the_table_has_a_row_for_each_thing_to_add_and_a_place_for_it() -> None:
    assert [row[0] for row in rows()] == [
        "a record kind",
        "a stage",
        "a table, a query",
        "a metric",
        "a cause",
        "a line of the liveness test",
        "a page",
        "a chart",
        "a command",
        "a channel",
        "a framework",
    ]
    for what, declared, then in rows():
        assert NAMED.search(declared), what
        assert NAMED.search(then) or what in {"a table, a query", "a channel"} or "beside" in then, what


def test_the_map_names_every_module(modules: ModuleType) -> None:
    listed = set()
    folder = ""
    for line in modules.module_map(ROOT).splitlines():
        if line.startswith("#"):
            folder = line.lstrip("# ")
        elif found := re.match(r"- `([\w.]+)`: .*\w", line):
            listed.add(f"{folder}/{found[1]}")
    files = (file for layer in LAYERS for file in (ROOT / layer).rglob("*.py"))
    assert listed == {str(file.relative_to(ROOT)) for file in files if file.name != "__init__.py"}
    assert len(listed) > 300


def test_the_map_takes_the_first_sentence_and_refuses_a_module_without_one(modules: ModuleType, tmp_path: Path) -> None:
    for layer in LAYERS:
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "__init__.py").write_text(f'"""The layer {layer}."""')
    (tmp_path / "app" / "one.py").write_text('"""What `one` is\nfor, e.g. this. And more.\n\nMuch more."""\n')
    assert "- `one.py`: What `one` is for, e.g. this.\n" in modules.module_map(tmp_path)
    (tmp_path / "app" / "two.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"two\.py has no docstring"):
        modules.module_map(tmp_path)
