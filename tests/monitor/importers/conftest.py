"""Fixtures of tests that import files."""

from __future__ import annotations

import forked
import pytest

from logprobe.monitor.importers import reading


@pytest.fixture(autouse=True)
def _forked_readers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read by processes that are forked, but where limits of such a process are tested."""
    if request.path.name != "test_bombs.py":
        monkeypatch.setattr(reading, "subprocess", forked)
