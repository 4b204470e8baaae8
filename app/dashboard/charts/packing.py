"""Numbers and colours in the form that plotly takes them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.app.dashboard.data.series import Floats

_LARGEST: Final = np.iinfo(np.int32).max
_SINGLE: Final = np.finfo(np.float32)


def packed(values: NDArray[Any], kind: str = "f8") -> dict[str, str]:
    """An array in plotly's typed form: half the size of JSON numbers, and nothing to parse. Steps fit float64 exactly.

    `kind`: of the numbers that travel, one that `browser/traces.js` knows.
    """
    return {"dtype": kind, "bdata": b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode("ascii")}


def packed_steps(steps: Floats) -> dict[str, str]:
    """Whole numbers, half the size where they fit."""
    return packed(steps, "i4" if len(steps) == 0 or np.abs(steps).max() <= _LARGEST else "f8")


def packed_places(places: Floats) -> dict[str, str]:
    """Places on an x axis: whole numbers where all of them are."""
    whole = bool((places == np.round(places)).all())
    return packed_steps(places) if whole else packed(places)


def packed_values(values: Floats) -> dict[str, str]:
    """Values to be drawn, with seven digits where they fit: a pixel needs no more, and it is half the size."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    fits = not len(sizes) or bool(sizes.max() < _SINGLE.max and sizes.min() > _SINGLE.tiny)
    return packed(values, "f4" if fits else "f8")


def transparent(color: str, alpha: float) -> str:
    """A hex colour through which `alpha` (0…1) of itself is to be seen.

    >>> transparent("#0072b2", 0.5)
    'rgba(0,114,178,0.5)'
    """
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def unpacked(array: dict[str, str]) -> Floats:
    """The array that `packed` was given."""
    return np.frombuffer(b64decode(array["bdata"]), dtype=f"<{array['dtype']}").astype(np.float64, copy=False)
