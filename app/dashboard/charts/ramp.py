"""A scale of colours from the page's own to its opposite, in steps that look equal.

Interpolated in Oklab (B. Ottosson, 2020, https://bottosson.github.io/posts/oklab/), where lightness is what the eye sees of it; the
hue stays one, so that the scale reads the same for every kind of colour blindness.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.app.dashboard.theme import Theme

Floats = NDArray[np.float64]

SHADES: Final = 64
_KNEE: Final = 0.04045  # sRGB (IEC 61966-2-1) is linear below, in encoded and in linear light
_LINEAR_KNEE: Final = 0.0031308
_END_LIGHTNESS: Final = {"light": 0.22, "dark": 0.97}
_TO_LMS: Final = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_TO_LAB: Final = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip


def ramp(theme: Theme, role: str, shades: int = SHADES) -> list[str]:
    """`shades` colours as CSS hex strings: the page's, then evenly through the role's hue to its far end."""
    page, color = oklab(theme.page), oklab(theme.color(role))
    end = np.array([_END_LIGHTNESS[theme.mode], *(0.35 * color[1:])])
    lightness = np.linspace(page[0], end[0], shades)
    knots = np.array([page, color, end])
    order = np.argsort(knots[:, 0])
    hues = [np.interp(lightness, knots[order, 0], knots[order, axis]) for axis in (1, 2)]
    return [_hex(lab) for lab in np.stack([lightness, *hues], axis=1)]


def oklab(color: str) -> Floats:
    """Lightness (0 to 1), a and b of a CSS hex color."""
    srgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= _KNEE, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lab: Floats = _TO_LAB @ np.cbrt(_TO_LMS @ linear)
    return lab


def _hex(lab: Floats) -> str:
    linear = np.clip(np.linalg.solve(_TO_LMS, np.linalg.solve(_TO_LAB, lab) ** 3), 0, 1)
    srgb = np.where(linear <= _LINEAR_KNEE, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in srgb)
