"""Figure of a finding: K3 of the affected tokens and of the others, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument, leading
from logprobe.monitor.judging.gather import slices_of
from logprobe.monitor.judging.signatures import SIGNATURES, kind_of
from logprobe.monitor.queries import Source

_STEPS: Final = 200  # that are read; of a longer run as many, evenly spaced

Row = Mapping[str, Any]
Point = tuple[int, float | None]  # step and K3; None: no such token
Concerned = Callable[[Row], bool | None]  # None: not known of these tokens


@dataclass(frozen=True)
class Picture:
    """K3 by step.

    Attributes:
        cause: cause of the finding.
        lines: name → points, with the affected tokens first and the others second. One line if all are affected.
        limit: reference level of K3, or None.
        limit_name: name of that level.
        since: first step concerned, or None if unknown.
        sampled: true if steps were omitted.
    """

    cause: str
    lines: Mapping[str, Sequence[Point]]
    limit: float | None
    limit_name: str
    since: int | None
    sampled: bool

    @property
    def words(self) -> str:
        """Description of the figure in a sentence."""
        return f"K3 by step of {' and of '.join(self.lines)}."


def read(source: Source, run: str, document: DiagnosisDocument, steps: Sequence[int]) -> Picture | None:
    """Return the figure of the leading finding.

    Args:
        source: a `Reader` or a `Store`.
        run: name of the run.
        document: its diagnosis.
        steps: all of its steps.

    Returns:
        The figure, or None if no finding alarms or the means exclude the leading one.

    Raises:
        QueryError: the read failed, see `Reader.read`.
    """
    finding = leading(document)
    cause = None if finding is None else SIGNATURES.get(finding["cause"])
    if finding is None or (cause is not None and cause.masked) or not len(steps):
        return None
    chosen = np.unique(np.asarray(steps)[np.linspace(0, len(steps) - 1, min(len(steps), _STEPS)).astype(int)]).tolist()
    rows = slices_of(source, run, chosen).to_pylist()
    limit, limit_name = _limit(finding["cause"], document)
    return Picture(
        finding["cause"],
        _lines(finding, rows, chosen),
        limit,
        limit_name,
        finding["since_step"],
        len(chosen) < len(steps),
    )


def _lines(finding: FindingDocument, rows: Sequence[Row], steps: Sequence[int]) -> dict[str, list[Point]]:
    names, concerned = _split(finding)
    if concerned is None:
        return {"all tokens": _by_step(rows, steps)}
    parts = ([row for row in rows if concerned(row) is wanted] for wanted in (True, False))
    lines = {name: _by_step(part, steps) for name, part in zip(names, parts, strict=True) if part}
    return lines if names[0] in lines else {"all tokens": _by_step(rows, steps)}


def _split(finding: FindingDocument) -> tuple[tuple[str, str], Concerned | None]:
    """Return the names of the affected tokens and of the others, and the rule that selects the former.

    The rule is None for all tokens.
    """
    replica = finding["evidence"].get("replica")
    if finding["cause"] == "replica_divergence" and replica is not None:
        return (f"replica {replica}", "other replicas"), lambda row: row["replica"] == replica
    return _SPLITS.get(finding["cause"], (("", ""), None))


def _lagging(row: Row) -> bool | None:
    return None if row["lag"] is None else row["lag"] > 0


_SPLITS: Final[Mapping[str, tuple[tuple[str, str], Concerned]]] = {
    "staleness": (("tokens of older weights", "tokens of the trainer's own weights"), _lagging),
    "stale_prefix_cache": (("requests with cached prompt tokens", "requests without"), lambda row: row["cached"]),
    "inflight_stale_kv": (
        ("sequences across a weight update", "sequences of one version"),
        lambda row: row["in_flight"],
    ),
}


def _by_step(rows: Sequence[Row], steps: Sequence[int]) -> list[Point]:
    tokens, k3 = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0.0)
    for row in rows:
        tokens[row["step"]] += row["n"]
        k3[row["step"]] += row["k3"]
    return [(step, k3[step] / tokens[step] if tokens[step] else None) for step in steps]


def _limit(cause: str, document: DiagnosisDocument) -> tuple[float | None, str]:
    level, growth = document["level"], document["growth"]
    if kind_of(cause) == "growth" or growth["verdict"] in {"growing", "critical"}:  # as the banner measures it
        return growth["baseline"], "baseline"
    return level and level["expected"]["high"], "most that is normal"
