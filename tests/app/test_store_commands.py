"""`logprobe store check` and `store copy`: what is damaged is named, and a copy is a data directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import logprobe, record


@pytest.fixture
def stored(home: Path) -> Path:
    record(home, steps=range(3))
    logprobe("up", "--once", "--home", home)
    return home


def test_a_flipped_bit_and_a_strange_file_are_named(stored: Path) -> None:
    assert json.loads(logprobe("store", "check", "--json", "--home", stored).stdout)["problems"] == []
    file = next((stored / "archive").glob("*/*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (file.parent / "notes.txt").write_text("mine")
    problems = json.loads(logprobe("store", "check", "--json", "--home", stored, code=2).stdout)["problems"]
    assert any(f"{file} is damaged" in problem for problem in problems)
    assert any("notes.txt is not a file of the archive" in problem for problem in problems)
    assert len(problems) == 2


def test_a_copy_is_a_data_directory_with_the_same_numbers(stored: Path, tmp_path: Path) -> None:
    before = logprobe("show", "toy", "--metrics", "--json", "--home", stored).stdout
    (stored / "logprobe.yaml").write_text("correction: {mode: armed}\n")
    logprobe("store", "copy", tmp_path / "copy", "--home", stored)
    assert not (tmp_path / "copy" / "logprobe.duckdb").exists()
    logprobe("up", "--once", "--home", tmp_path / "copy")
    assert logprobe("show", "toy", "--metrics", "--json", "--home", tmp_path / "copy").stdout == before
    assert (tmp_path / "copy" / "logprobe.yaml").exists()
    assert "exists. Choose" in logprobe("store", "copy", tmp_path / "copy", "--home", stored, code=1).stderr
    assert "no archive yet" in logprobe("store", "copy", tmp_path / "x", "--home", tmp_path / "none", code=1).stderr
