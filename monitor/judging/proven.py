"""Evidence of experiments in a diagnosis. A proven cause ranks above inferred ones.

This module loads neither DuckDB nor the service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from logprobe.monitor import queries
from logprobe.monitor.judging.document import (
    CREDIBLE,
    CorrectionDocument,
    DiagnosisDocument,
    FindingDocument,
    NotMeasuredDocument,
)
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.proof.experiments.knobs import KNOBS
from logprobe.monitor.queries import Source

PROVEN: Final = 1.0  # confidence: an arm removed the gap
_FEWEST: Final = 2  # findings that could be mistaken for each other


def latest(source: Source, run: str, kind: str) -> Mapping[str, Any] | None:
    """Return the document of the newest experiment of a kind with `at` and `author`, or None. Raises `QueryError`."""
    rows = queries.experiments_latest(source, run=run).to_pylist()
    experiment = next((row for row in rows if row["kind"] == kind), None)
    if experiment is None:
        return None
    return {
        **json.loads(experiment["document"]),
        "at": experiment["finished_at"].isoformat(),
        "author": experiment["author"],
    }


def with_experiment(diagnosis: DiagnosisDocument, bisection: Mapping[str, Any] | None) -> DiagnosisDocument:
    """Return the diagnosis with the causes that `logprobe bisect` proved, or with the experiment that would decide.

    Args:
        diagnosis: diagnosis from recorded numbers.
        bisection: newest document of `logprobe bisect`, or None.
    """
    if bisection is None:
        return {**diagnosis, "not_measured": [*diagnosis["not_measured"], *_undecided(diagnosis)]}
    arms = _proving(bisection)
    if not arms:
        return diagnosis
    inferred = {finding["cause"]: finding for finding in diagnosis["findings"]}
    proven = [_proven(arm, inferred.get(cause)) for cause, arm in arms.items()]
    others = [finding for finding in diagnosis["findings"] if finding["cause"] not in arms]
    added = [finding for finding in proven if finding["cause"] not in inferred]
    return {
        **diagnosis,
        "findings": [*proven, *others],
        "layer": proven[0]["layer"] if diagnosis["layer"] in ("none", "unknown") else diagnosis["layer"],
        "correction": _correction(diagnosis["correction"], added),
    }


def _proving(bisection: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the arm that proves each cause, by cause, with the largest share first."""
    arms: dict[str, Mapping[str, Any]] = {}
    for arm in bisection["arms"]:
        works = arm["knob"] in bisection["smallest_set"] and arm["verdict"] in ("this is it", "contributes")
        if works and arm["cause"] in SIGNATURES and arm["removed"] is not None:
            arms.setdefault(arm["cause"], arm)
    return arms


def _proven(arm: Mapping[str, Any], inferred: FindingDocument | None) -> FindingDocument:
    cause = SIGNATURES[arm["cause"]]
    side = str(arm["side"]).replace("_", " ")
    words = (
        f"Proven by experiment: with {arm['knob']} = {arm['setting']}, {arm['removed']:.0%} of the {side}'s K3 is gone."
    )
    evidence = {"proven_by": f"{arm['knob']} = {arm['setting']}", "removed": arm["removed"]}
    if inferred is not None:
        return {
            **inferred,
            "confidence": PROVEN,
            "evidence": {**evidence, **inferred["evidence"]},
            "explanation": f"{words} {inferred['explanation']}",
        }
    return {
        "cause": cause.cause,
        "layer": cause.layer,
        "confidence": PROVEN,
        "evidence": evidence,
        "explanation": f"{words} The recorded numbers alone did not show it.",
        "fix": cause.remedy,
        "since_step": None,
        "settings": [],
        "share": {"now": None, "growth": None},
        "urgency": "act",
        "vetoes": cause.layer != "objective",
        "accepted": None,
    }


def _correction(advice: CorrectionDocument, added: Sequence[FindingDocument]) -> CorrectionDocument:
    vetoing = next((finding["cause"] for finding in added if finding["vetoes"]), None)
    if vetoing is None or advice["advice"] == "do_not_enable":
        return advice
    return {"advice": "do_not_enable", "why": f"fix {vetoing} first: a correction would hide it"}


def _undecided(diagnosis: DiagnosisDocument) -> Iterator[NotMeasuredDocument]:
    """Yield the experiment that distinguishes the causes if all of them are only possible."""
    unsure = [
        finding["cause"]
        for finding in diagnosis["findings"]
        if finding["confidence"] < CREDIBLE and finding["urgency"] != "informational"
    ]
    knobs = [knob.name for cause in unsure for knob in KNOBS if knob.cause == cause]
    if len(unsure) >= _FEWEST and knobs:
        yield {
            "what": f"which of {', '.join(unsure)} it is",
            "why": "their numbers look alike",
            "how": f"run: logprobe bisect {diagnosis['run']} --model VERSION=PATH --knobs {','.join(dict.fromkeys(knobs))}",
        }
