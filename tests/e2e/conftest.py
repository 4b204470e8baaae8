"""Fixtures of tests that start a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_process import make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one tiny policy, ``old`` and ``new`` (a training step later)."""
    return make_models(tmp_path_factory.mktemp("models"))
