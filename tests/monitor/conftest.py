"""What several tests of the monitor start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from segments import RUN
from store_work import Fed

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.store.store import Store


@pytest.fixture
def writer(home: Path) -> SpoolWriter:
    """Writes segments into the spool of an empty home."""
    return SpoolWriter(home, RUN, "writer")


@pytest.fixture
def fed(store: Store) -> Fed:
    """An empty store that a test feeds."""
    return Fed(store)
