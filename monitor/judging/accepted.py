"""Accepted causes of runs from the store, and the K3 to expect from earlier runs of the same setup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logprobe.monitor import queries
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.queries import Source


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected K3 according to another run.

    Attributes:
        run: the other run.
        k3: median of its first steps, nats.
        steps: number of these steps.
        same_setup: true if engine configuration and sampling params are the same.
    """

    run: str
    k3: float
    steps: int
    same_setup: bool

    @property
    def words(self) -> str:
        """Return the sentence that proposes the expectation."""
        of = " of the same setup" if self.same_setup else ""
        return f"run {self.run}{of} had K3 {self.k3:.2g} (median of its first {self.steps} steps)"


def accepted(source: Source, run: str) -> tuple[Acceptance, ...]:
    """Return the causes of `run` that users or the policy of the data directory have accepted. Raises `QueryError`."""
    return tuple(_acceptance(row) for row in queries.acceptances_read(source, run=run).to_pylist())


def accepted_by_run(source: Source) -> dict[str, tuple[Acceptance, ...]]:
    """Return all acceptances, by run. Raises `QueryError`."""
    found: dict[str, list[Acceptance]] = {}
    for row in queries.acceptances_read(source, run=None).to_pylist():
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


def expectation(source: Source, run: str, reference: str | None = None) -> Expectation | None:
    """Return the expected K3 of `run`, from `reference` or else from the newest healthy earlier run of the same setup.

    Returns None if no such run exists or its K3 was not measured. Raises `QueryError`.
    """
    rows = queries.acceptances_expected(source, run=run, reference=reference).to_pylist()
    return next((Expectation(row["run"], row["k3"], row["steps"], row["same_setup"]) for row in rows), None)


def explained(document: DiagnosisDocument, cause: str) -> float | None:
    """Return the K3 that a cause explains, or None if the cause is not found or its share is unknown."""
    level = document["level"]
    share = next((finding["share"]["now"] for finding in document["findings"] if finding["cause"] == cause), None)
    return None if level is None or share is None else share * level["k3"]
