"""A bucket of a real server, and a node in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_servers import BUCKET, Server, environment, serving

ADDRESS = f"s3://{BUCKET}/team"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def address(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of its own per test, in an environment that says how to come there."""
    for name, value in environment(server.port, XDG_STATE_HOME=str(tmp_path / "node")).items():
        monkeypatch.setenv(name, value)
    return f"{ADDRESS}/{tmp_path.name}"
