"""Numbers as people read them."""

from __future__ import annotations

import pytest

from logprobe.app.text import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.9, "1000"),
        (1234.5, "1,235"),
        (99_999.0, "99,999"),
        (0.9999999, "1"),
        (0.999, "0.999"),
        (1.000034, "1.000034"),
        (1.00000004, "1"),
        (1.012, "1.01"),
        (1e-3, "0.001"),
        (float("nan"), "–"),
        (-0.0, "0"),
    ],
)
def test_edges(value: float, text: str) -> None:
    assert numbers.number(value) == text
