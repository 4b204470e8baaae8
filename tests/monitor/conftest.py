"""What several tests of the monitor start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from segments import RUN

from logprobe.collectors.spool.segments import SpoolWriter


@pytest.fixture
def writer(home: Path) -> SpoolWriter:
    """Writes segments into the spool of an empty home."""
    return SpoolWriter(home, RUN, "writer")
