"""The picture of a series."""

from __future__ import annotations

import math
from io import BytesIO

import pytest
from PIL import Image

from logprobe.alerts.sending.sparkline import sparkline

SERIES = [(step, 1.0 + step % 3) for step in range(20)]


def picture(**changes: object) -> Image.Image:
    drawn = sparkline(**{"series": SERIES, "title": "k3_kl", **changes})
    assert drawn is not None
    return Image.open(BytesIO(drawn))


def test_size_and_form() -> None:
    assert (picture().size, picture().format) == ((640, 180), "PNG")


@pytest.mark.parametrize("series", [[], [(1, 2.0)], [(1, math.nan), (2, math.inf), (3, 1.0)]])
def test_too_little_to_draw(series: list[tuple[int, float]]) -> None:
    assert sparkline(series, title="k3_kl") is None


def test_a_gap_stays_a_gap() -> None:
    holed = [(step, math.nan if 8 <= step <= 12 else value) for step, value in SERIES]
    middle = (300, 36, 340, 150)
    assert len(picture(series=holed).crop(middle).getcolors(maxcolors=10**6)) == 1  # paper alone
    assert len(picture().crop(middle).getcolors(maxcolors=10**6)) > 1


@pytest.mark.parametrize("changes", [{"baseline": 1.5}, {"since_step": 10}, {"baseline": math.nan}, {"since_step": 99}])
def test_extremes_are_drawn(changes: dict[str, object]) -> None:
    assert picture(**changes).size == (640, 180)


@pytest.mark.parametrize("series", [[(1, 0.0), (2, 0.0)], [(1, -1e300), (2, 1e300)], [(5, 1e-300), (5, 1.0)]])
def test_any_numbers_are_drawn(series: list[tuple[int, float]]) -> None:
    assert picture(series=series).size == (640, 180)


def test_onset_and_baseline_change_the_picture() -> None:
    assert len({picture(**c).tobytes() for c in ({}, {"baseline": 1.5}, {"since_step": 10})}) == 3
