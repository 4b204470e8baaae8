"""What a diagnosis says: the data types that the command line, the store, alerts and the app share.

`Diagnosis.document` is the one JSON form of it. Pure data: nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Layer = Literal["semantic", "inference_path", "objective"]
Verdict = Literal["healthy", "growing", "critical", "calibrating", "no_data"]
Advice = Literal["enable", "do_not_enable", "not_needed"]

# The order in which layers are ruled out: a fault in one makes judgements about the later ones uncertain.
LAYERS: Final[tuple[Layer, ...]] = ("semantic", "inference_path", "objective")


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause that the evidence speaks for.

    Attributes:
        cause: identifier, see `logprobe.monitor.diagnosis.causes`.
        layer: of the cause.
        confidence: 0 … 1; near 1 only where the configuration says so.
        effect: 0 … 1, how much of the gap it explains.
        evidence: the numbers it stands on, by name.
        explanation: what happened, for somebody who has not read the code.
        fix: the flag, setting or line to change.
        since_step: first step concerned; None: not known.
    """

    cause: str
    layer: Layer
    confidence: float
    effect: float
    evidence: Mapping[str, Any]
    explanation: str
    fix: str
    since_step: int | None = None

    @property
    def weight(self) -> float:
        """What findings are ordered by: confidence × effect."""
        return self.confidence * self.effect

    def document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "cause": self.cause,
            "layer": self.layer,
            "confidence": round(self.confidence, 3),
            "evidence": {**self.evidence, "effect": round(self.effect, 3)},
            "explanation": self.explanation,
            "fix": self.fix,
            "since_step": self.since_step,
        }


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Something that could not be looked at: what it is, why, and how to make it measurable."""

    what: str
    why: str
    how: str

    def document(self) -> dict[str, str]:
        """JSON-ready form."""
        return {"what": self.what, "why": self.why, "how": self.how}


@dataclass(frozen=True, slots=True)
class Correction:
    """Whether an importance-sampling correction is the right medicine."""

    advice: Advice
    why: str

    def document(self) -> dict[str, str]:
        """JSON-ready form."""
        return {"advice": self.advice, "why": self.why}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a run, since when, in which layer, and what to do about it.

    Attributes:
        run: name of the run.
        verdict: of the gap's course and of what was found.
        since_step: where the trouble began; None: nothing is wrong, or not known.
        doubling_steps: in how many steps K3 doubles; None: it does not grow, or not known.
        layer: the first layer with a credible finding; "none": looked at and healthy; "unknown": not enough to tell.
        findings: ordered by confidence × effect.
        not_measured: what could not be looked at.
        correction: whether to switch an importance-sampling correction on.
    """

    run: str
    verdict: Verdict
    since_step: int | None
    doubling_steps: float | None
    layer: Literal["semantic", "inference_path", "objective", "none", "unknown"]
    findings: tuple[Finding, ...]
    not_measured: tuple[NotMeasured, ...]
    correction: Correction = field(default_factory=lambda: Correction("not_needed", "nothing was found"))

    def document(self) -> dict[str, Any]:
        """JSON-ready form: what ``logprobe diagnose --json`` prints and the store keeps."""
        return {
            "run": self.run,
            "verdict": self.verdict,
            "since_step": self.since_step,
            "doubling_steps": self.doubling_steps,
            "layer": self.layer,
            "findings": [finding.document() for finding in self.findings],
            "not_measured": [item.document() for item in self.not_measured],
            "correction": self.correction.document(),
        }
