"""A bucket of a real server, and a node in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bucket_servers
import pytest
from bucket_servers import Server, environment, serving

OPTION = "--bucket-server"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, default="rclone", help="the server of a bucket: rclone, weed or azurite")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Running. A session that began in another folder does not know the option."""
    kind = str(request.config.getoption(OPTION, "rclone"))
    with serving(tmp_path_factory.mktemp("server"), kind) as running:
        yield running


@pytest.fixture
def address(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of its own per test, in an environment that says how to come there."""
    for name, value in environment(server.port, server.kind, XDG_STATE_HOME=str(tmp_path / "node")).items():
        monkeypatch.setenv(name, value)
    return f"{bucket_servers.address(server.kind)}/team/{tmp_path.name}"
