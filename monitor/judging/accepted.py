"""Accepted causes of runs from the store."""

from __future__ import annotations

from collections.abc import Sequence

from logprobe.monitor import queries
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.queries import Source


def accepted(source: Source, run: str) -> tuple[Acceptance, ...]:
    """Return the causes of `run` that users have accepted. Raises `QueryError`."""
    return accepted_by_run(source, [run]).get(run, ())


def accepted_by_run(source: Source, runs: Sequence[str]) -> dict[str, tuple[Acceptance, ...]]:
    """Return the acceptances of `runs` that have any, by run. Raises `QueryError`."""
    found: dict[str, tuple[Acceptance, ...]] = {}
    for row in queries.acceptances_read(source, runs=list(runs)).to_pylist():
        at = row["accepted_at"].isoformat()
        acceptance = Acceptance(row["cause"], row["because"], row["up_to"], by=row["author"], at=at)
        found[row["run"]] = (*found.get(row["run"], ()), acceptance)
    return found


def explained(document: DiagnosisDocument, cause: str) -> float | None:
    """Return the K3 that a cause explains, or None if the cause is not found or its share is unknown."""
    level = document["level"]
    share = next((finding["share"]["now"] for finding in document["findings"] if finding["cause"] == cause), None)
    return None if level is None or share is None else share * level["k3"]
