"""Cases on a real CUDA device: `make campaign NAME=gpu`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_model import make_tiny_model

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "collectors")]

_BUSY_CYCLES = 2_000_000_000  # of a multiprocessor: a second or more


def pytest_sessionstart() -> None:
    if not torch.cuda.is_available() and os.environ.get("ENGINE_CASES_ON") != "cpu":
        pytest.exit("no CUDA device: torch.cuda.is_available() is false", returncode=1)


@pytest.fixture
def device() -> Iterator[torch.device]:
    """The device; what a case left there is waited for."""
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.synchronize()


@pytest.fixture
def busy(device: torch.device) -> Callable[[], torch.cuda.Event]:
    """Gives the caller's stream something to do for a second; → the event at its end."""

    def begin() -> torch.cuda.Event:
        torch.cuda.synchronize()
        torch.cuda._sleep(_BUSY_CYCLES)
        end = torch.cuda.Event()
        end.record()
        return end

    return begin


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=1)
