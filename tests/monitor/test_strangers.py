"""A port that a killed service had may belong to another program: readers say that no service answers, or read the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import flight

from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor import queries
from logprobe.monitor.home import Home, ServiceInfo
from logprobe.monitor.reader import connect, open_reader
from logprobe.monitor.store.store import Store


def test_a_stranger_is_no_service_and_the_file_is_read_beside_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    Store.open(home).close()
    with flight.FlightServerBase("grpc://127.0.0.1:0") as stranger:  # which has none of our calls
        home.write_service_info(ServiceInfo("127.0.0.1", stranger.port, "token", 1, "2026-01-01T00:00:00+00:00"))
        with pytest.raises(ServiceUnavailableError, match="is not responding"):
            connect(home)
        with open_reader(home) as reader:
            assert reader.source == "file"
            assert queries.app_runs(reader).num_rows == 0
