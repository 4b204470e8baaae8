"""Columns of query results as arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def floats(column: pa.ChunkedArray | pa.Array) -> NDArray[np.float64]:
    """Numbers, or booleans as 0 and 1, as float64; NaN for null.

    >>> floats(pa.array([1, None, 3])).tolist()
    [1.0, nan, 3.0]
    """
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
