"""What a home keeps by default; a command line names these without loading a store."""

from __future__ import annotations

from typing import Final

GIB: Final = 1 << 30
KEEP_GIB: Final = 50.0  # of raw tokens
KEEP_STORE_GIB: Final = 10.0  # of the store
