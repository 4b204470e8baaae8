"""Actions after imports: on real modules, loaded by Python's own import system."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from logprobe.collectors.integrations.imports import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module `part` that nobody has imported."""
    name = f"framework_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_an_action_follows_the_first_import(package: str) -> None:
    seen: list[Any] = []
    when_imported(f"{package}.part", lambda module: seen.append(module.VALUE))
    __import__(package)
    assert seen == []
    assert f"{package}.part" not in sys.modules
    module = __import__(f"{package}.part", fromlist=["VALUE"])
    assert seen == [1]
    assert module.__loader__.get_source(module.__name__) == "VALUE = 1\n"
    when_imported(f"{package}.part", lambda module: seen.append(module.VALUE + 1))
    assert seen == [1, 2]


def test_what_an_action_raises_is_logged_and_the_import_succeeds(package: str, caplog: Any) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("ours")

    when_imported(f"{package}.part", fail)
    assert __import__(f"{package}.part", fromlist=["VALUE"]).VALUE == 1
    assert "ours" in caplog.text


def test_a_module_that_fails_to_load_fails_as_without(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "part.py").write_text("raise OSError('broken')\n")
    seen: list[Any] = []
    when_imported(f"{package}.part", seen.append)
    with pytest.raises(OSError, match="broken"):
        __import__(f"{package}.part")
    with pytest.raises(ModuleNotFoundError):
        __import__(f"{package}.missing")
    assert seen == []
