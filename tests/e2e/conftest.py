"""Fixtures of tests that start a real engine, or a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_process import Watched
from engine_process import EngineHost, make_models
from made_once import copy_of
from playwright.sync_api import Browser, sync_playwright


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines and browsers take minutes to start on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one tiny policy, ``old`` and ``new`` (a training step later)."""
    folder = tmp_path_factory.mktemp("models") / "models"
    copy_of("models", make_models, folder)
    return folder


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    """The process in which scenarios have engines of their own, one after the other."""
    host = EngineHost(tmp_path_factory.mktemp("engines"))
    yield host
    host.close()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser. Of one module only: while it lives, nothing else in this process can run an event loop."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        yield running
        running.close()


@pytest.fixture
def seen(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Watched]:
    """A page of the module's `address` that must come through without a complaint; options of the window by indirect parameters."""
    page = Watched(browser, address, **getattr(request, "param", {}))
    yield page
    assert page.complaints == []
    page.close()
