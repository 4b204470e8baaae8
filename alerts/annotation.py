"""What people can say of a run, and the action that takes it; apart from `run_notes`, which does it, so that a page
loads no database."""

from __future__ import annotations

from typing import Final

ANNOTATE: Final = "runs.annotate"
LONGEST: Final = {"tag": 60, "owner": 100, "note": 2000}  # characters
