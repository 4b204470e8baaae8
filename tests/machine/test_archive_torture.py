"""A short part of `archive_torture.py`, and that it would see what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_torture import real, simulated

from logprobe.collectors import files
from logprobe.collectors.errors import SegmentError, StoreError
from logprobe.monitor.store import archive as archives
from logprobe.monitor.store import tombstone
from logprobe.monitor.store.archive import Archive


@pytest.mark.parametrize("seed", [1001, 1002, 1003])
def test_nothing_is_lost_doubled_or_deleted(seed: int) -> None:
    done, problems = simulated(seed, steps=150)
    assert problems == []
    assert done["checks"] > 15
    assert done["kills"] > 3
    assert done["power cuts"] > 1


def test_a_seed_is_a_history() -> None:
    assert simulated(7, steps=40) == simulated(7, steps=40)


def test_a_real_process_that_is_killed_loses_nothing() -> None:
    done, problems = real(1, kills=7)
    assert problems == []
    assert done["deleted indexes"] == 1
    assert done["segments"]


def no_sync(path: Path, content: bytes, *, mode: int = 0o600, disk: files.Disk = files.DISK) -> None:
    files.make_durable(path.parent, disk)
    disk.write(path.with_name(f".{path.name}.tmp"), content)
    disk.rename(path.with_name(f".{path.name}.tmp"), path)


def too_early(self: Archive, run: str, kind: str, group: Any, report: Any) -> None:
    self._unlink(group)
    merge(self, run, kind, group, report)


merge = Archive._merge
MISTAKES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a file is not durable before its segments go": (archives, "replace_file", no_sync),
    "segments go before there is a file": (Archive, "_merge", too_early),
    "a tombstone is not durable": (tombstone, "replace_file", no_sync),
    "what is merged is merged again": (Archive, "holds", lambda self, run, segment: False),
    "a folder counts as durable because it is there": (
        files,
        "make_durable",
        lambda folder, disk: disk.is_folder(folder) or (files.make_durable(folder.parent, disk), disk.mkdir(folder)),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    for seed in range(30):
        try:
            if simulated(seed, steps=60)[1]:
                return
        except (SegmentError, StoreError):  # the service gave up in the middle of a healthy disk
            return
    pytest.fail("not seen")
