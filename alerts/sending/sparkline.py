"""A small picture of a series' last steps, for channels that show images. Pure: from numbers to the bytes of a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from logprobe.monitor.number_text import number

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 16, 16, 34, 26
_FINE: Final = 3  # drawn larger, then reduced: that is how Pillow's lines get smooth
_FEWEST: Final = 2
_DECADE: Final = 10.0

_PAPER, _INK, _FAINT, _LINE, _BASE = "#ffffff", "#1f2933", "#d9dee4", "#2563eb", "#8a94a0"


def sparkline(
    series: Sequence[tuple[int, float]], *, title: str, baseline: float | None = None, since_step: int | None = None
) -> bytes | None:
    """Draws a series, with its baseline dashed and the steps from `since_step` on shaded.

    Args:
        series: (step, value) in order of step; values that are not finite leave a gap.
        title: above the picture, with the newest value.
        baseline: what the values are compared with.
        since_step: first step of the episode.

    Returns:
        A PNG of 640 × 180; None for fewer than two finite values. The vertical axis is logarithmic when all values are
        positive and span more than a factor of ten.
    """
    finite = [(step, value) for step, value in series if math.isfinite(value)]
    if len(finite) < _FEWEST:
        return None
    frame = _Frame(finite, baseline)
    image = Image.new("RGB", (_WIDTH * _FINE, _HEIGHT * _FINE), _PAPER)
    draw = ImageDraw.Draw(image)
    if since_step is not None:
        _shade(draw, frame, since_step)
    if baseline is not None and frame.shows(baseline):
        _dashes(draw, frame.y(baseline))
    for part in _parts(series):
        _trace(draw, [frame.point(step, value) for step, value in part])
    _dot(draw, frame.point(*finite[-1]))
    _words(draw, title, finite)
    small = image.resize((_WIDTH, _HEIGHT), Image.Resampling.LANCZOS)
    file = BytesIO()
    small.save(file, "PNG", optimize=True)
    return file.getvalue()


class _Frame:
    """Where steps and values lie in the large picture, in pixels."""

    def __init__(self, finite: Sequence[tuple[int, float]], baseline: float | None) -> None:
        values = [value for _, value in finite]
        if baseline is not None and math.isfinite(baseline):
            values.append(baseline)
        self._log = min(values) > 0 and max(values) > _DECADE * min(values)
        self._low, self._high = self._scaled(min(values)), self._scaled(max(values))
        self._first, self._last = finite[0][0], finite[-1][0]

    def shows(self, value: float) -> bool:
        return math.isfinite(value)

    def x(self, step: float) -> float:
        share = (step - self._first) / max(1, self._last - self._first)
        return _FINE * (_LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT))

    def y(self, value: float) -> float:
        span = self._high - self._low
        share = (self._scaled(value) - self._low) / span if span else 0.5
        return _FINE * (_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM))

    def point(self, step: int, value: float) -> Point:
        return self.x(step), self.y(value)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value


def _parts(series: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """Runs of finite values: a line over a gap would claim values that are not known."""
    parts: list[list[tuple[int, float]]] = [[]]
    for step, value in series:
        if math.isfinite(value):
            parts[-1].append((step, value))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _trace(draw: ImageDraw.ImageDraw, points: list[Point]) -> None:
    if len(points) < _FEWEST:
        _dot(draw, points[0], radius=2)
    else:
        draw.line(points, fill=_LINE, width=2 * _FINE, joint="curve")


def _dot(draw: ImageDraw.ImageDraw, at: Point, radius: int = 4) -> None:
    x, y, r = *at, radius * _FINE
    draw.ellipse((x - r, y - r, x + r, y + r), fill=_LINE)


def _shade(draw: ImageDraw.ImageDraw, frame: _Frame, since_step: int) -> None:
    edge = frame.x(since_step)
    right = _FINE * (_WIDTH - _RIGHT)
    draw.rectangle((edge, _FINE * _TOP, right, _FINE * (_HEIGHT - _BOTTOM)), fill="#fdecec")
    draw.line((edge, _FINE * _TOP, edge, _FINE * (_HEIGHT - _BOTTOM)), fill="#d7263d", width=_FINE)


def _dashes(draw: ImageDraw.ImageDraw, y: float) -> None:
    for left in range(_LEFT, _WIDTH - _RIGHT, 12):
        draw.line((_FINE * left, y, _FINE * (left + 6), y), fill=_BASE, width=_FINE)


def _words(draw: ImageDraw.ImageDraw, title: str, finite: Sequence[tuple[int, float]]) -> None:
    (first, _), (last, newest) = finite[0], finite[-1]
    floor = _FINE * (_HEIGHT - _BOTTOM)
    right = _FINE * (_WIDTH - _RIGHT)
    draw.line((_FINE * _LEFT, floor, right, floor), fill=_FAINT, width=_FINE)
    large, little = ImageFont.load_default(15 * _FINE), ImageFont.load_default(12 * _FINE)
    draw.text((_FINE * _LEFT, _FINE * 8), title, fill=_INK, font=large)
    value = number(newest).replace("\u2212", "-")  # which the font lacks
    draw.text((right, _FINE * 8), value, fill=_INK, font=large, anchor="ra")
    draw.text((_FINE * _LEFT, floor + _FINE * 6), f"step {first}", fill=_BASE, font=little)
    draw.text((right, floor + _FINE * 6), f"step {last}", fill=_BASE, font=little, anchor="ra")
