"""The wordlist's check finds what it should, names the line, and leaves exceptions alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PHRASES = [
    {"find": r"\bstood in\b", "say": "was in", "except": {"kept/*": "a name"}},
    {"find": r"\bpeople are told\b", "say": "people are notified"},
]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wording_check", Path(__file__).with_name("check.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "name", "lines"),
    [
        ("a\nIt stood in the file.\n", "a.md", [2]),
        ("It STOOD\nin the file.", "a.md", [1]),
        ('"It stood "\n    f"in the file"', "a.py", [1]),
        ("# It stood\n# in the file", "a.py", [1]),
        ("understood in full, stood inside", "a.md", []),
        ("It stood in the file.", "kept/a.md", []),
        ("first\npeople are told, it stood in", "a.md", [2, 2]),
    ],
)
def test_phrases_are_found_with_their_line(check: ModuleType, text: str, name: str, lines: list[int]) -> None:
    assert [line for line, *_ in check.found_in(text, name, PHRASES)] == lines


def test_a_text_with_a_phrase_fails(check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import subprocess

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "page.md").write_text("one\nsince when?\n")
    subprocess.run(["git", "add", "page.md"], cwd=tmp_path, check=True)
    assert check.main(tmp_path) == 1
    assert capsys.readouterr().out == "page.md:2: “since when”; write: since which step\n"
    (tmp_path / "page.md").write_text("one\ntwo\n")
    assert check.main(tmp_path) == 0
