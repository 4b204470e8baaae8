"""Keeps pandas out of short-lived processes: pyarrow loads it where it is installed, which takes longer than most of
our commands.

pyarrow works without pandas and so does everything that is done in a process that calls `without_pandas`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _NoPandas:
    """A finder. Without the base class for such, whose module takes longer to load than a quick command may."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=name)
        return None


def without_pandas() -> None:
    """Make ``import pandas`` fail in this process, as if it were not installed."""
    sys.meta_path.insert(0, _NoPandas())
