"""A port that a killed service had may belong to another program: readers say that no service answers, or read the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor import queries
from logprobe.monitor.home import Home, ServiceInfo
from logprobe.monitor.reader import connect, open_reader
from logprobe.monitor.store.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Whose `service.json` names a Flight server that has none of our calls."""
    home = Home(tmp_path)
    Store.open(home).close()
    with flight.FlightServerBase("grpc://127.0.0.1:0") as stranger:
        home.write_service_info(ServiceInfo("127.0.0.1", stranger.port, "token", 1, "2026-01-01T00:00:00+00:00"))
        yield home


def test_a_stranger_is_no_service(home: Home) -> None:
    with pytest.raises(ServiceUnavailableError, match="is not responding"):
        connect(home)


def test_the_file_is_read_beside_a_stranger(home: Home) -> None:
    with open_reader(home) as reader:
        assert reader.source == "file"
        assert queries.app_runs(reader).num_rows == 0
