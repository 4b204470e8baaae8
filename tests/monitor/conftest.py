"""What several tests of the monitor start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from segments import RUN

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """The store of an empty home."""
    with Store.open(Home(home)) as opened:
        yield opened


@pytest.fixture
def writer(home: Path) -> SpoolWriter:
    """Writes segments into the spool of an empty home."""
    return SpoolWriter(home, RUN, "writer")
