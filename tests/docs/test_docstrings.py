"""Examples in docstrings say what is so."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("collectors", "monitor", "alerts", "app")
MODULES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix()
    for part in PARTS
    for path in (ROOT / part).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(import_module(f"logprobe.{name.removesuffix('/__init__').replace('/', '.')}"))
    assert found.attempted > 0
    assert found.failed == 0
