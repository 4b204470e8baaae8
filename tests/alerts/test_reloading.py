"""A file that changes is taken over; one that is wrong is not, and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logprobe.alerts.reloading import Reloaded
from logprobe.collectors.errors import ConfigurationError


def number(file: Path) -> int:
    text = file.read_text() if file.exists() else "0"
    if not text.isdigit():
        raise ConfigurationError(f"{file}: {text!r} is not a number\nmore about it")
    return int(text)


def write(file: Path, text: str) -> None:
    """As editors do: another file in its place. So that it shows on any clock, it is a second younger."""
    before = file.stat().st_mtime if file.exists() else 0.0
    other = file.with_suffix(".new")
    other.write_text(text)
    os.utime(other, (before + 1, before + 1))
    other.replace(file)


def test_what_changes_is_taken_over_and_what_is_wrong_is_not(tmp_path: Path) -> None:
    file = tmp_path / "logprobe.yaml"
    found = Reloaded(tmp_path, "channels", lambda: number(file))
    assert (found.current(), found.report()) == (0, {})
    write(file, "1")
    assert found.current() == 1
    write(file, "two")
    assert found.current() == 1
    assert found.report() == {"problem": f"{file}: 'two' is not a number; the previous version stays active"}
    assert found.current() == 1  # looked at again, and still the same
    write(file, "3")
    assert (found.current(), found.report()) == (3, {})
    file.unlink()
    assert found.current() == 0


def test_the_first_time_there_is_nothing_to_keep(tmp_path: Path) -> None:
    file = tmp_path / "logprobe.yaml"
    write(file, "two")
    with pytest.raises(ConfigurationError, match="is not a number"):
        Reloaded(tmp_path, "channels", lambda: number(file))


def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "logprobe.yaml"
    write(file, "1")
    reads = []
    found = Reloaded(tmp_path, "channels", lambda: reads.append(file) or len(reads))
    assert [found.current() for _ in range(3)] == [1, 1, 1]
