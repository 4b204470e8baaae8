"""Accepted causes of runs from the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logprobe.monitor import queries
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.queries import Source


def accepted(source: Source, run: str) -> tuple[Acceptance, ...]:
    """Return the causes of `run` that users or the policy of the data directory have accepted. Raises `QueryError`."""
    return accepted_by_run(source, run).get(run, ())


def accepted_by_run(source: Source, run: str | None = None) -> dict[str, tuple[Acceptance, ...]]:
    """Return the acceptances of all runs, or of `run`, by run. Raises `QueryError`."""
    found: dict[str, list[Acceptance]] = {}
    for row in queries.acceptances_read(source, run=run).to_pylist():
        found.setdefault(row["run"], []).append(_acceptance(row))
    return {run: tuple(some) for run, some in found.items()}


def _acceptance(row: Mapping[str, Any]) -> Acceptance:
    return Acceptance(
        cause=row["cause"],
        because=row["because"],
        up_to=row["up_to"],
        by=row["author"],
        at=row["accepted_at"].isoformat(),
        source=row["source"],
        was=row["was"],
    )


def explained(document: DiagnosisDocument, cause: str) -> float | None:
    """Return the K3 that a cause explains, or None if the cause is not found or its share is unknown."""
    level = document["level"]
    share = next((finding["share"]["now"] for finding in document["findings"] if finding["cause"] == cause), None)
    return None if level is None or share is None else share * level["k3"]
