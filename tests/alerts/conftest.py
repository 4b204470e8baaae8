"""What several tests of alerts start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_slack import FakeSlack

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """The store of an empty home."""
    with Store.open(Home(home).create()) as opened:
        yield opened


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlack]:
    """A Slack that takes messages as fast as they come."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with FakeSlack(interval=0.0) as fake:
        yield fake
