"""What a cause is: one declaration, one rule, one remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.strata import Strata
from logprobe.monitor.diagnosis.result import Finding, Layer

# How sure a finding is, by what it stands on. What numbers alone suggest never comes near what the configuration says.
CERTAIN: Final = 0.99  # configuration and numbers agree, or it was counted
KNOWN: Final = 0.95  # the configuration says so
INFERRED: Final = 0.85  # from numbers alone, by a test that only this cause passes
LIKELY: Final = 0.6  # from numbers alone, by elimination
UNNAMED: Final = 0.55  # that something is wrong is told by the numbers, what it is is not
POSSIBLE: Final = 0.4  # others would look the same
CREDIBLE: Final = 0.5  # from here on a finding decides the layer
RECORDED: Final = 0.04  # added to INFERRED where records speak for it, too


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rule found.

    Attributes:
        confidence: 0 … 1.
        effect: 0 … 1, how much of the gap it explains.
        evidence: numbers by name.
        explanation: one or two sentences with the numbers in them.
        since_step: first step concerned; None: not known.
        fix: where it differs from the cause's.
    """

    confidence: float
    effect: float
    evidence: Mapping[str, Any]
    explanation: str
    since_step: int | None = None
    fix: str | None = None


Rule: TypeAlias = Callable[[Evidence], Sign | None]
Explain: TypeAlias = Callable[[Evidence, Finding], Evidence]
Bools: TypeAlias = NDArray[np.bool_]
Contrast: TypeAlias = Callable[[Strata, Finding], tuple[Bools, Bools]]
Kind: TypeAlias = Literal["fault", "noise", "growth", "lag", "note"]


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that can be wrong.

    Attributes:
        name: identifier.
        layer: where it is wrong.
        words: what is wrong, in one line.
        looks_at: the evidence it is told by, in one line.
        fix: the remedy: flag, setting or code.
        rule: pure; None when nothing speaks for the cause.
        explain: takes the part of the gap that its finding explains out of the evidence; None: nothing can be taken
            out.
        fix_corrected: the remedy that is left where a correction is on; "": the same one.
        kind: what follows from it (`urgency`): a fault by its layer and share; noise by the level of the setup; growth
            by the run's own past; lag by what it adds; by a note no log-prob is wrong.
        steady: what it makes is there from the first step on and stays; always so of noise.
        hides: it leaves nothing else to compare.
        left_out: its tokens are in no mean.
        contrast: requests that it concerns and those to compare them with, within a step [R]; None: it concerns all
            alike.
        never_arrives: weights are older than their label says, in all requests of later steps.
    """

    name: str
    layer: Layer
    words: str
    looks_at: str
    fix: str
    rule: Rule
    explain: Explain | None = None
    fix_corrected: str = ""
    kind: Kind = "fault"
    steady: bool = False
    hides: bool = False
    left_out: bool = False
    contrast: Contrast | None = None
    never_arrives: bool = False

    def find(self, evidence: Evidence) -> Finding | None:
        """The cause's finding, if its rule has one."""
        sign = self.rule(evidence)
        if sign is None:
            return None
        return Finding(
            cause=self.name,
            layer=self.layer,
            confidence=sign.confidence,
            effect=min(max(sign.effect, 0.0), 1.0),
            evidence=_rounded(sign.evidence),
            explanation=sign.explanation,
            fix=sign.fix or self.fix,
            since_step=sign.since_step,
        )

    def without(self, evidence: Evidence, finding: Finding) -> Evidence:
        """The evidence that is left once this cause, as it was found, is explained."""
        left = self.explain(evidence, finding) if self.explain else evidence.left(self.name)
        return replace(
            left,
            hidden=left.hidden or self.hides,
            rise_explained=left.rise_explained or self.never_arrives or self.contrast is not None,
            rise_left=left.rise_left or (self.never_arrives and self.name not in left.separated),
        )


def _rounded(evidence: Mapping[str, object]) -> dict[str, object]:
    """Five digits: what more there is, is noise. Values that are no number are null in JSON."""
    return {name: _plain(value) for name, value in evidence.items()}


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - NaN
    return value
