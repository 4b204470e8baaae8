"""Exclusion of pandas from short-lived processes, where pyarrow would import it.

The import takes longer than most of our commands. pyarrow and all code in such processes work without pandas.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _NoPandas:
    """A module finder without the base class of finders, whose module is too slow to load for a quick command."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if name == "pandas":
            raise ModuleNotFoundError("pandas is disabled in this process; import it in another process", name=name)
        return None


def without_pandas() -> None:
    """Make ``import pandas`` fail in this process, as if it were not installed."""
    sys.meta_path.insert(0, _NoPandas())
