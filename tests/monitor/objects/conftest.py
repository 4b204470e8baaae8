"""What tests of an object store start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import KINDS, ObjectServer, serving

from logprobe.monitor.objects import amazon
from logprobe.monitor.objects import store as object_store


@pytest.fixture(params=KINDS)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    """A real server of each protocol, with no connection that another test has left."""
    for cached in (object_store._connected, amazon._client):
        cached.cache_clear()
    with serving(tmp_path / "server", monkeypatch, request.param) as running:
        yield running
