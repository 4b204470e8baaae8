"""Result of judging a run, and its inputs: growth, known-good runs, accepted causes.

An accepted cause stays visible, and neither alarms nor vetoes until it exceeds its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, cast

from logprobe.monitor.judging.document import (
    AcceptanceDocument,
    Advice,
    GrowthDocument,
    LagDocument,
    Layer,
    LevelStatus,
    RememberedDocument,
    Urgency,
    Verdict,
)
from logprobe.monitor.judging.signatures import SIGNATURES, Signature

GROWS: Final[tuple[Verdict, ...]] = ("growing", "critical")
REMEMBERED_RUNS: Final = 3  # known-good runs of a setup, from which on they say what is normal for it


def digits(value: float) -> float:
    """Return a number rounded to the digits that do not depend on the order of a sum."""
    return float(f"{value:.9g}")


def _plain(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name, for a document."""
    fields = asdict(record).items()
    numbers = {name: digits(value) for name, value in fields if isinstance(value, float)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields} | numbers


@dataclass(frozen=True, slots=True)
class Growth:
    """The verdict on K3 over time.

    Attributes:
        verdict: state as of the last step.
        since_step: onset estimated at detection, or None unless growing or critical.
        baseline: K3 of the run's own normal, or None while calibrating.
        ratio: ratio of the last short median to the baseline.
        doubling_steps: steps in which K3 doubles at present, or None if it does not grow or that is unknown.
        doubling_interval: 95 % interval of `doubling_steps`. The upper end is None if growth may have stopped.
        reasons: sentences behind the verdict.
    """

    verdict: Verdict
    since_step: int | None = None
    baseline: float | None = None
    ratio: float | None = None
    doubling_steps: float | None = None
    doubling_interval: tuple[float, float | None] | None = None
    reasons: tuple[str, ...] = ()

    def document(self) -> GrowthDocument:
        """Return the JSON-ready form."""
        return cast("GrowthDocument", _plain(self))


@dataclass(frozen=True, slots=True)
class Remembered:
    """Levels of known-good runs of the same setup; see `logprobe.monitor.judging.memory`.

    Attributes:
        runs: number of runs.
        low: lowest K3 of these runs at their beginning or end, of tokens that the trainer's own weights sampled.
        high: highest K3.
        median: median K3.
    """

    runs: int
    low: float
    high: float
    median: float

    @property
    def settles(self) -> bool:
        """True if there are enough runs to define the setup's normal level."""
        return self.runs >= REMEMBERED_RUNS

    @property
    def words(self) -> str:
        """Sentence with the number of runs and their K3."""
        low, high = (f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e") for value in (self.low, self.high))
        had = f"this setup had K3 {low if low == high else f'{low} to {high}'}"
        few = "" if self.settles else f"; normal is known from {REMEMBERED_RUNS} on"
        return f"{had} in {self.runs} run{'' if self.runs == 1 else 's'}{few}"

    def document(self) -> RememberedDocument:
        """Return the JSON-ready form."""
        return cast("RememberedDocument", {**_plain(self), "words": self.words})


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One accepted cause.

    Attributes:
        cause: identifier, see `logprobe.monitor.judging.signatures`.
        because: reason in the user's words.
        up_to: K3 that the cause may explain (absolute).
        by: user who accepted it, or None if unknown.
        at: time of acceptance, ISO 8601 in UTC, or None if unknown.
    """

    cause: str
    because: str
    up_to: float
    by: str | None = None
    at: str | None = None

    def document(self) -> AcceptanceDocument:
        """Return the JSON-ready form."""
        return {"because": self.because, "up_to": self.up_to, "by": self.by, "at": self.at}


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
        columns: group columns with the values that define the place.
        share: share of today's K3.
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
        cause: row of the table of signatures, or "unknown" if no test names one.
        confidence: strength of the evidence.
        since: first step concerned, or None if unknown.
        until: last step concerned, or None if the fault continues.
        share: share of today's K3, or None if unknown.
        growth: share of the growth since the run's beginning, or None if unknown.
        k3: K3 that the cause adds today.
        place: place of the affected tokens, or None if not confined.
        evidence: numbers by name, for the reader.
        urgency: urgency for the operator.
        vetoes: true if it forbids a correction.
        accepted: valid acceptance with its author and reason, or None.
    """

    cause: str
    confidence: Confidence
    since: int | None = None
    share: float | None = None
    growth: float | None = None
    k3: float = 0.0
    place: Place | None = None
    until: int | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)
    urgency: Urgency = "watch"
    vetoes: bool = False
    accepted: Acceptance | None = None

    @property
    def signature(self) -> Signature:
        """Row of the cause in the table of signatures."""
        return SIGNATURES[self.cause]

    @property
    def layer(self) -> Layer:
        """Layer at fault."""
        return self.signature.layer

    @property
    def hides(self) -> bool:
        """True if the finding prevents all other judgements."""
        return self.signature.hides and self.until is None

    @property
    def named(self) -> bool:
        """Return whether the cause is named by a record, a count, or a test that only this cause passes."""
        return self.confidence >= Confidence.INFERRED


@dataclass(frozen=True, slots=True)
class Level:
    """K3 of the numerics compared with the reported range of the setup.

    Attributes:
        k3: K3 of tokens of one weight version before any growth, or None if not measured.
        low: lower end of the range.
        high: upper end of the range.
        status: comparison of both.
        source: report behind the range.
        bands: rows of the level table behind the range.
        settled: true if only known-good runs of the same setup show that the level is normal.
    """

    k3: float | None
    low: float
    high: float
    status: LevelStatus
    source: str = ""
    settled: bool = False
    bands: tuple[str, ...] = ()

    @property
    def beyond(self) -> bool:
        """True if the level exceeds the reported range of the setup, or of all setups for an unknown one."""
        unlike_any = self.status == "unknown set-up" and self.k3 is not None and self.k3 > self.high
        return self.status in ("above", "far above") or unlike_any


@dataclass(frozen=True, slots=True)
class Judgement:
    """State of a run, the place and cause of its mismatch, and advice.

    Attributes:
        verdict: overall state.
        layer: layer at fault, or "none" if no action is needed.
        since: first step concerned, or None if unknown or nothing is wrong.
        where: place that holds most of K3, or None if the mismatch is spread.
        findings: causes with evidence, sorted by urgency, then by share of K3.
        advice: advice on a correction.
        reason: one word for `advice`: "veto", "weights unproven", "unknown", "growth", "lag", "nothing".
        level: level of K3.
        unexplained: share of today's K3 that no finding explains, or None if unknown.
        lag: safe weight lag, or None if unknown.
    """

    verdict: Verdict
    layer: Layer | Literal["none"]
    since: int | None
    where: Place | None
    findings: tuple[Finding, ...]
    advice: Advice
    reason: str
    level: Level
    unexplained: float | None = None
    lag: LagDocument | None = None
