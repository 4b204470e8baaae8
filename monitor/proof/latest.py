"""The newest experiments of a run, as diagnosis, page and report read them: loads neither DuckDB nor the service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from logprobe.monitor.analysis.slices import Source


def latest(source: Source, run: str, kind: str) -> Mapping[str, Any] | None:
    """The newest experiment of a kind: its document, with `at` and `author`; None: there is none. Raises `QueryError`."""
    rows = source.read("experiments_latest", run=run).to_pylist()
    found = next((row for row in rows if row["kind"] == kind), None)
    if found is None:
        return None
    return {**json.loads(found["document"]), "at": found["finished_at"].isoformat(), "author": found["author"]}
