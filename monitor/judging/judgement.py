"""Result of judging a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from logprobe.monitor.judging.result import Acceptance, LevelStatus
from logprobe.monitor.judging.signatures import SIGNATURES, Layer, Signature

State = Literal["not measured", "calibrating", "healthy", "unknown", "watch", "growing", "critical"]
Urgency = Literal["act", "watch", "informational"]
Advice = Literal["enable", "do_not_enable", "not_needed"]


class Confidence(IntEnum):
    """Strength of the evidence for a finding, weakest first."""

    POSSIBLE = 1  # other causes would look the same
    INFERRED = 2  # the numbers pass a test that only this cause passes
    KNOWN = 3  # the settings or records say so, and the numbers agree
    CERTAIN = 4  # it was counted


@dataclass(frozen=True, slots=True)
class Place:
    """Group of tokens that holds most of K3.

    Attributes:
        columns: group columns and their values that make up the place.
        share: of today's K3.
        tokens: share of today's tokens.
        k3: mean K3 of the place.
        others: mean K3 of all other tokens.
        z: standard errors of the difference within steps and lags.
        since: first step at which the place differs, or None if unknown.
    """

    columns: Mapping[str, tuple[object, ...]]
    share: float
    tokens: float
    k3: float
    others: float
    z: float
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with its evidence.

    Attributes:
        cause: row of the table of signatures; "unknown" if no test names one.
        confidence: strength of the evidence.
        since: first step concerned, or None if unknown.
        until: last step concerned, if it is over; None if it is not.
        share: of today's K3 that it makes, or None if unknown.
        least: lower end of the interval of `share`, or None if unknown.
        most: upper end of it.
        growth: share of the growth since the run's beginning, or None if unknown.
        k3: K3 that it adds today.
        place: place it is confined to, or None if it is not confined.
        evidence: numbers by name, for the reader.
        urgency: what follows for the operator.
        vetoes: no correction may be switched on beside it.
        accepted: by whom and why it was accepted, where it still is.
    """

    cause: str
    confidence: Confidence
    since: int | None = None
    share: float | None = None
    most: float | None = None
    growth: float | None = None
    k3: float = 0.0
    least: float | None = None
    place: Place | None = None
    until: int | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)
    urgency: Urgency = "watch"
    vetoes: bool = False
    accepted: Acceptance | None = None

    @property
    def signature(self) -> Signature:
        """Row of the table."""
        return SIGNATURES[self.cause]

    @property
    def layer(self) -> Layer:
        """Layer at fault."""
        return self.signature.layer

    @property
    def hides(self) -> bool:
        """Whether nothing else can be judged beside it."""
        return self.signature.hides and self.until is None

    @property
    def named(self) -> bool:
        """Whether a test that only this cause passes, a record or a count names it."""
        return self.confidence >= Confidence.INFERRED


@dataclass(frozen=True, slots=True)
class Level:
    """K3 of the numerics beside the range that such a setup is reported to have.

    Attributes:
        k3: K3 of tokens of one weight version, before it grew; None if it is not measured.
        low: lower end of the range.
        high: upper end of the range.
        status: comparison of both.
        source: who reports the range.
        settled: whether known-good runs of the same setup, and nothing else, say that the level is normal.
    """

    k3: float | None
    low: float
    high: float
    status: LevelStatus
    source: str = ""
    settled: bool = False

    @property
    def beyond(self) -> bool:
        """Whether it is higher than is reported of such a setup; of an unknown one, higher than of any."""
        unlike_any = self.status == "unknown set-up" and self.k3 is not None and self.k3 > self.high
        return self.status in ("above", "far above") or unlike_any


@dataclass(frozen=True, slots=True)
class Judgement:
    """State of a run, the place and cause of its mismatch, and advice.

    Attributes:
        state: overall state.
        layer: layer at fault; "none" if there is nothing to act on.
        since: first step concerned, or None if unknown or nothing is wrong.
        as_of: last step that was judged.
        where: place that holds most of K3, or None if the mismatch is spread.
        findings: most urgent first, within an urgency by share of K3.
        advice: whether to switch a correction on.
        reason: one word for `advice`: "veto", "weights unproven", "unknown", "growth", "lag", "nothing".
        level: level of K3.
        unexplained: share of today's K3 that no finding explains, or None if unknown.
        judged: parts that were judged.
        not_judged: parts that could not be judged, each with its reason.
    """

    state: State
    layer: Layer | Literal["none"]
    since: int | None
    as_of: int | None
    where: Place | None
    findings: tuple[Finding, ...]
    advice: Advice
    reason: str
    level: Level
    unexplained: float | None = None
    judged: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
