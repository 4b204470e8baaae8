"""Fixtures of the frameworks' cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy small enough to train on a CPU."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=1)
