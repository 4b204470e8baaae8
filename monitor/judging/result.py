"""What a diagnosis says: the data types that the command line, the store, alerts and the app share.

`Diagnosis.document` is its JSON form (`document`). Pure data: but for the limit of an acceptance, nothing here decides
anything.

A cause that people have accepted stays visible, and neither alarms nor vetoes until it exceeds what was accepted. Where
acceptances are kept, and who may add them, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self

from logprobe.monitor.judging.document import (
    AcceptanceDocument,
    CorrectionDocument,
    DiagnosisDocument,
    ExplainedDocument,
    FindingDocument,
    GrowthDocument,
    LevelDocument,
    NotMeasuredDocument,
    RememberedDocument,
    SettingDocument,
)

Layer = Literal["semantic", "inference_path", "objective", "unknown"]
Verdict = Literal["healthy", "watch", "unknown", "growing", "critical", "calibrating", "no_data"]
Advice = Literal["enable", "do_not_enable", "not_needed"]
Urgency = Literal["informational", "watch", "act"]
LevelStatus = Literal["as expected", "above", "far above", "unknown set-up", "not measured"]

GROWS: Final[tuple[Verdict, ...]] = ("growing", "critical")
# The order in which layers are ruled out: a fault in one makes judgements about the later ones uncertain.
LAYERS: Final[tuple[Layer, ...]] = ("semantic", "inference_path", "objective")
AcceptedBy = Literal["command", "policy", "page"]

REMEMBERED_RUNS: Final = 3  # known-good runs of a setup, from which on they say what is normal for it
MARGIN: Final = 2.0  # times what a cause explained when it was accepted, where no limit was given


@dataclass(frozen=True, slots=True)
class Setting:
    """What a remedy is called in a framework, see `logprobe.monitor.judging.named`.

    Attributes:
        framework: whose setting it is.
        where: class, command or condition, where it is not the framework's main configuration; "": it is.
        name: as the framework has it.
        now: its recorded values; None: none was recorded.
        suggested: value to try; no value where `known` is False.
        known: whether a value can be suggested.
        words: what the value means; "": it needs no words.
        copy: the setting as it is written down, with the suggested value.
        corrects: whether it corrects the mismatch instead of mending it.
    """

    framework: str
    where: str
    name: str
    now: list[Any] | None
    suggested: Any
    known: bool
    words: str
    copy: str
    corrects: bool

    def document(self) -> SettingDocument:
        """JSON-ready form."""
        return {
            "framework": self.framework,
            "where": self.where,
            "name": self.name,
            "now": self.now,
            "suggested": self.suggested,
            "known": self.known,
            "words": self.words,
            "copy": self.copy,
            "corrects": self.corrects,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause that the evidence speaks for.

    Attributes:
        cause: identifier, see `logprobe.monitor.judging.signatures`.
        layer: of the cause.
        confidence: 0 … 1; near 1 only where the configuration says so.
        effect: 0 … 1, how much of the gap it explains.
        evidence: the numbers it stands on, by name.
        explanation: what happened, for someone who has not read the code.
        fix: the flag, setting or line to change.
        settings: what that is called in the framework of the run; empty: no name is known, or it is set already.
        since_step: first step concerned; None: not known.
        share: of today's K3 gap that it explains; None: not known.
        share_interval: 95 % interval of it.
        growth_share: of the growth since the run's beginning that it explains; None: nothing grew, or not known.
        urgency: "informational": explained, stable, no action; "watch": look at it; "act".
        vetoes: whether it forbids a correction.
        accepted: by whom and why it was accepted, where it still is.
    """

    cause: str
    layer: Layer
    confidence: float
    effect: float
    evidence: Mapping[str, Any]
    explanation: str
    fix: str
    since_step: int | None = None
    share: float | None = None
    share_interval: tuple[float, float] | None = None
    growth_share: float | None = None
    urgency: Urgency = "act"
    vetoes: bool = False
    accepted: Acceptance | None = None
    settings: tuple[Setting, ...] = ()

    @property
    def weight(self) -> float:
        """What findings are ordered by: confidence × effect."""
        return self.confidence * self.effect

    def document(self) -> FindingDocument:
        """JSON-ready form."""
        return {
            "cause": self.cause,
            "layer": self.layer,
            "confidence": round(self.confidence, 3),
            "evidence": {**self.evidence, "effect": round(self.effect, 3)},
            "explanation": self.explanation,
            "fix": self.fix,
            "settings": [setting.document() for setting in self.settings],
            "since_step": self.since_step,
            "share": {
                "now": _rounded(self.share),
                "interval": None if self.share_interval is None else [_rounded(end) for end in self.share_interval],
                "growth": _rounded(self.growth_share),
            },
            "urgency": self.urgency,
            "vetoes": self.vetoes,
            "accepted": None if self.accepted is None else self.accepted.document(),
        }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _digits(value: float) -> float:
    """With the digits that sums over tokens keep, in whatever order a database adds them."""
    return float(f"{value:.9g}")


def _significant(value: float | None) -> float | None:
    return None if value is None else _digits(value)


@dataclass(frozen=True, slots=True)
class Growth:
    """The verdict on K3 over time.

    Attributes:
        verdict: as of the last step.
        since_step: where growth began, as estimated when it was found; None unless growing or critical.
        baseline: K3 of the run's own normal; None while calibrating.
        ratio: the last short median over the baseline.
        doubling_steps: steps in which K3 doubles at present; None when it is not growing, or that is unknown.
        doubling_interval: 95 % interval of it; the upper end is None when growth may have stopped.
        reasons: the verdict in words.
    """

    verdict: Verdict
    since_step: int | None = None
    baseline: float | None = None
    ratio: float | None = None
    doubling_steps: float | None = None
    doubling_interval: tuple[float, float | None] | None = None
    reasons: tuple[str, ...] = ()

    def document(self) -> GrowthDocument:
        """JSON-ready form."""
        interval = self.doubling_interval
        return {
            "verdict": self.verdict,
            "since_step": self.since_step,
            "baseline": _significant(self.baseline),
            "ratio": _significant(self.ratio),
            "doubling_steps": self.doubling_steps,
            "doubling_interval": None if interval is None else list(interval),
            "reasons": list(self.reasons),
        }

    @classmethod
    def of(cls, document: GrowthDocument) -> Self:
        """From its JSON-ready form."""
        interval = document["doubling_interval"]
        return cls(
            verdict=document["verdict"],
            since_step=document["since_step"],
            baseline=document["baseline"],
            ratio=document["ratio"],
            doubling_steps=document["doubling_steps"],
            doubling_interval=None if interval is None else (interval[0], interval[1]),
            reasons=tuple(document["reasons"]),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting with another value than the known-good runs of a similar setup had; None: it was not recorded, or
    null."""

    setting: str
    then: str | None
    now: str | None

    @property
    def words(self) -> str:
        """Its name and both values."""
        then, now = ("not recorded" if value is None else value for value in (self.then, self.now))
        return f"{self.setting} ({then} then, {now} now)"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What known-good runs of the same setup had, or of one that differs in few settings; see
    `logprobe.monitor.judging.memory`.

    Attributes:
        runs: how many.
        low: the least K3 that one of them had, at its beginning or end, of tokens that the trainer's own weights
            sampled.
        high: the most.
        median: of them.
        differs: settings with another value; empty: it is the same setup.
        comparable: whether no level is expected to be another one for what differs.
    """

    runs: int
    low: float
    high: float
    median: float
    differs: tuple[Difference, ...] = ()
    comparable: bool = True

    @property
    def settles(self) -> bool:
        """Whether it is the same setup, in enough runs to say what is normal for it."""
        return not self.differs and self.runs >= REMEMBERED_RUNS

    @property
    def words(self) -> str:
        """Which runs had which K3."""
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        if not self.differs:
            few = "" if self.settles else f"; normal is known from {REMEMBERED_RUNS} on"
            return f"this setup had K3 {self.range} in {runs}{few}"
        names = ", ".join(difference.words for difference in self.differs)
        return (
            f"no known-good run of this setup; {runs} that had K3 {self.range} differ in {names}: a difference, not "
            "known to be the cause"
        )

    @property
    def range(self) -> str:
        """From the least to the most, as people write it."""
        low, high = (f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e") for value in (self.low, self.high))
        return low if low == high else f"{low} to {high}"

    def document(self) -> RememberedDocument:
        """JSON-ready form."""
        return {
            "runs": self.runs,
            "low": _digits(self.low),
            "high": _digits(self.high),
            "median": _digits(self.median),
            "differs": [
                {"setting": difference.setting, "then": difference.then, "now": difference.now}
                for difference in self.differs
            ],
            "words": self.words,
        }


@dataclass(frozen=True, slots=True)
class Level:
    """Whether the gap has the size that this setup should give. Growth is another question.

    Attributes:
        k3: today's K3, all tokens.
        numerics: what of it is judged: K3 of tokens that the trainer's own weights sampled, before any growth; None:
            there are none.
        low: lower end of what is expected of `numerics`; None: not known.
        high: upper end.
        setup: what is known of the setup: engine_dtype, trainer_dtype, head, experts, kv_cache, weights; null where not
            known.
        source: who reports the expected range.
        status: of `numerics` against the range.
        first: K3 of the run's own first steps; None: not measured.
        own: least and most of what `numerics` was at the run's beginning and end; None: not measured.
        remembered: what known-good runs of the same setup had, or of a similar one; None: there are none.
        settled: whether these, and nothing else, say that the level is normal: the run has no baseline yet.
    """

    k3: float
    numerics: float | None
    low: float | None
    high: float | None
    setup: Mapping[str, str | None]
    source: str
    status: LevelStatus
    first: float | None = None
    own: tuple[float, float] | None = None
    remembered: Remembered | None = None
    settled: bool = False

    def document(self) -> LevelDocument:
        """JSON-ready form."""
        return {
            "k3": _digits(self.k3),
            "numerics": _significant(self.numerics),
            "expected": {"low": self.low, "high": self.high},
            "setup": dict(self.setup),
            "source": self.source,
            "status": self.status,
            "first": _significant(self.first),
            "remembered": None if self.remembered is None else self.remembered.document(),
            "settled": self.settled,
        }


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Something that could not be looked at: what it is, why, and how to make it measurable."""

    what: str
    why: str
    how: str

    def document(self) -> NotMeasuredDocument:
        """JSON-ready form."""
        return {"what": self.what, "why": self.why, "how": self.how}


@dataclass(frozen=True, slots=True)
class Correction:
    """Whether an importance-sampling correction is the right medicine."""

    advice: Advice
    why: str

    def document(self) -> CorrectionDocument:
        """JSON-ready form."""
        return {"advice": self.advice, "why": self.why}


class Explained(Protocol):
    """A `logprobe.monitor.judging.decomposition.Decomposition`."""

    @property
    def words(self) -> str:
        """The answer in a sentence; "": nothing grew."""

    def document(self) -> ExplainedDocument:
        """JSON-ready form."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a run, since which step, in which layer, and what to do about it.

    Attributes:
        run: name of the run.
        verdict: of the gap's trend and of what was found.
        since_step: where the trouble began; None: nothing is wrong, or not known.
        doubling_steps: in how many steps K3 doubles; None: it does not grow, or not known.
        layer: the first layer with a credible finding; "none": looked at and healthy; "unknown": not enough to tell.
        findings: those to act on first, informational ones last; within that ordered by confidence × effect.
        not_measured: what could not be looked at.
        correction: whether to switch an importance-sampling correction on.
        unexplained: share of today's K3 gap that no finding explains; None: not known.
        level: whether the gap has the size that the setup should give; None: no gap was measured.
        growth: of K3 over time, by the run's own past.
        why_it_grew: since the run's beginning, in parts; None: not known.
        framework: whose settings findings name; None: none was recorded.
        settings: what decides log-probs, by name; empty: too little is recorded. Not in the document.
    """

    run: str
    verdict: Verdict
    since_step: int | None
    doubling_steps: float | None
    layer: Literal["semantic", "inference_path", "objective", "none", "unknown"]
    findings: tuple[Finding, ...]
    not_measured: tuple[NotMeasured, ...]
    correction: Correction = field(default_factory=lambda: Correction("not_needed", "nothing was found"))
    unexplained: float | None = None
    level: Level | None = None
    growth: Growth = field(default_factory=lambda: Growth("no_data"))
    why_it_grew: Explained | None = None
    framework: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> DiagnosisDocument:
        """JSON-ready form: what ``logprobe show --json`` prints and the store keeps."""
        return {
            "run": self.run,
            "verdict": self.verdict,
            "since_step": self.since_step,
            "doubling_steps": self.doubling_steps,
            "layer": self.layer,
            "findings": [finding.document() for finding in self.findings],
            "not_measured": [item.document() for item in self.not_measured],
            "correction": self.correction.document(),
            "unexplained": _rounded(self.unexplained),
            "level": None if self.level is None else self.level.document(),
            "growth": self.growth.document(),
            "why_it_grew": None if self.why_it_grew is None else self.why_it_grew.document(),
            "framework": self.framework,
        }


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One cause that someone lives with.

    Attributes:
        cause: identifier, see `logprobe.monitor.judging.signatures`.
        because: the reason, in the words of who accepted it.
        up_to: K3 that the cause may explain (absolute); None: `MARGIN` times what it explained when it was accepted.
        by: who accepted it; None: not known.
        at: when, ISO 8601 in UTC; None: not known.
        source: where it was said.
        was: K3 that the cause explained when it was accepted; None: not known then, as in a policy for runs to come.
    """

    cause: str
    because: str
    up_to: float | None = None
    by: str | None = None
    at: str | None = None
    source: AcceptedBy = "command"
    was: float | None = None

    def limit(self, first: float | None = None) -> float | None:
        """K3 up to which the cause is accepted; None: without limit.

        Args:
            first: K3 that it explained in the run's first steps: the reference where neither a limit nor `was` is
                known.

        >>> Acceptance("low_precision", "bf16 by choice", was=1e-3).limit()
        0.002
        """
        if self.up_to is not None:
            return self.up_to
        reference = self.was if self.was is not None else first
        return None if reference is None else MARGIN * reference

    def document(self) -> AcceptanceDocument:
        """JSON-ready form."""
        return {
            "because": self.because,
            "up_to": self.up_to,
            "was": self.was,
            "by": self.by,
            "at": self.at,
            "source": self.source,
        }
