"""kill -9 while an older store is upgraded: it is the old one or the new one, never something between, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

from killed_upgrade import torment


def test_an_upgrade_that_is_killed_leaves_the_old_store_or_the_new_one(tmp_path: Path) -> None:
    counts = torment(tmp_path, kills=5, seed=7)
    assert (counts["broken"], counts["unfinished"]) == (0, 0)
    assert counts["old"] > 0  # otherwise the kills came too late to show anything
