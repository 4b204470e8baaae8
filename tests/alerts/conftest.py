"""Fixtures of several tests of alerts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_slack import FakeSlack


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlack]:
    """A Slack that takes messages as fast as they come."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with FakeSlack(interval=0.0) as fake:
        yield fake
