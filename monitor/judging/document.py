"""JSON document of a judgement, shared by page, report, JSON output, Slack and terminal.

``logprobe show --json`` prints the document, and the store keeps it. `explain.explained` creates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

Layer = Literal["semantic", "inference_path", "objective", "unknown"]
Verdict = Literal["healthy", "watch", "unknown", "growing", "critical", "calibrating", "no_data"]
Advice = Literal["enable", "do_not_enable", "not_needed"]
Urgency = Literal["act", "watch", "informational"]
LevelStatus = Literal["as expected", "above", "far above", "unknown set-up", "not measured"]

# Order in which layers are ruled out: a fault in one makes judgements about the later ones uncertain.
LAYERS: Final[tuple[Layer, ...]] = ("semantic", "inference_path", "objective")
CREDIBLE: Final = 0.5  # confidence from which on a finding decides something


class SettingDocument(TypedDict):
    """Name of a remedy in a framework, see `logprobe.monitor.judging.named`.

    Attributes:
        framework: framework of the setting.
        where: class, command or condition, or "" for the framework's main configuration.
        name: name in the framework.
        now: recorded values, or None if none was recorded.
        suggested: value to try, valid only if `known`.
        known: true if a value can be suggested.
        words: meaning of the value, or "".
        copy: text to paste, with the suggested value.
        corrects: true if the setting corrects the mismatch instead of removing its cause.
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


class ShareDocument(TypedDict):
    """Shares of today's K3 and of its growth that a finding explains, None if unknown."""

    now: float | None
    growth: float | None


class AcceptanceDocument(TypedDict):
    """Acceptance of the enclosing finding's cause, see `judgement.Acceptance`."""

    because: str
    up_to: float
    by: str | None
    at: str | None


class FindingDocument(TypedDict):
    """A cause with its evidence.

    Attributes:
        cause: identifier, see `logprobe.monitor.judging.signatures`.
        layer: layer at fault.
        confidence: 0 to 1.
        evidence: numbers behind the finding, by name.
        explanation: the cause and its numbers in words.
        fix: flag, setting or line to change.
        settings: names of the remedy in the run's framework, empty if none is known or all are set already.
        since_step: first step concerned, or None if unknown.
        share: shares of K3 that it explains.
        urgency: "informational" if it is explained and stable.
        vetoes: true if it forbids a correction.
        accepted: valid acceptance with its author and reason, or None.
    """

    cause: str
    layer: Layer
    confidence: float
    evidence: Mapping[str, Any]
    explanation: str
    fix: str
    since_step: int | None
    settings: list[SettingDocument]
    share: ShareDocument
    urgency: Urgency
    vetoes: bool
    accepted: AcceptanceDocument | None


class GrowthDocument(TypedDict):
    """Growth of K3, see `judgement.Growth`."""

    verdict: Verdict
    since_step: int | None
    baseline: float | None
    ratio: float | None
    doubling_steps: float | None
    doubling_interval: list[Any] | None
    reasons: list[str]


class RememberedDocument(TypedDict):
    """K3 of known-good runs with its description, see `judgement.Remembered`."""

    runs: int
    low: float
    high: float
    median: float
    words: str


class ExpectedDocument(TypedDict):
    """Reported range of K3 for the setup, None if unknown."""

    low: float | None
    high: float | None


class LevelDocument(TypedDict):
    """Level of K3 compared with that of its setup, without its growth.

    Attributes:
        k3: today's K3 of all tokens.
        numerics: K3 of tokens from the trainer's own weights before any growth, which is judged, or None without any.
        expected: range of `numerics`.
        setup: engine_dtype, trainer_dtype, head, experts, kv_cache, weights, replay; null if unknown.
        source: report behind the range.
        bands: rows of the level table behind it, none for known-good runs.
        status: comparison of `numerics` with the range.
        first: K3 of the run's first steps, or None if it was not measured.
        remembered: K3 of known-good runs of the same setup, or None.
        settled: true if only these runs show that the level is normal, since the run has no baseline yet.
    """

    k3: float
    numerics: float | None
    expected: ExpectedDocument
    setup: dict[str, str | None]
    source: str
    bands: list[str]
    status: LevelStatus
    first: float | None
    remembered: RememberedDocument | None
    settled: bool


class NotMeasuredDocument(TypedDict):
    """Missing input, with the reason and a way to measure it."""

    what: str
    why: str
    how: str


class LagRowDocument(TypedDict):
    """ESS, share of tokens that masked importance sampling would drop, and K3 at a weight lag in versions."""

    lag: int
    ess: float
    masked: float
    k3: float


class LagLimitDocument(TypedDict):
    """Largest lag with enough ESS (None: none of those seen), its 95 % interval (upper end None: beyond the largest lag
    seen), and whether it is the largest lag seen."""

    lag: int | None
    interval: list[int | None]
    largest_seen: bool


class LagDocument(TypedDict):
    """Weight lag in versions up to which the run's tokens keep their worth, see `safe_lag.safe_lag`.

    Attributes:
        uncorrected: limit without a correction, or None if the effect of lag cannot be separated from that of length.
        corrected: limit with one, or None likewise.
        by_lag: curve.
        k3_per_update: K3 that a weight update adds, or None if unknown.
        half_learning_rate: factor of the limits at half the learning rate, and its 95 % interval, or None if unknown.
        words: the same as text.
    """

    uncorrected: LagLimitDocument | None
    corrected: LagLimitDocument | None
    by_lag: list[LagRowDocument]
    k3_per_update: float | None
    half_learning_rate: list[float] | None
    words: str


class SidesDocument(TypedDict):
    """Mean over sampled and over trained requests, and the 95 % interval of their difference."""

    sampled: float
    trained: float
    difference_interval: list[float]


class LateDocument(TypedDict):
    """Lag in versions beyond which answers are dropped, and the share of those that are."""

    limit: int
    dropped: float


class DiscardedDocument(TypedDict):
    """Sampled requests that were never trained, see `discarding.discarding`.

    Attributes:
        requests: number of requests that had the time to be trained.
        share: share of them that were not.
        length: sampled tokens, or None if unknown.
        entropy: mean −r in nats, or None if unknown.
        reward: reward, or None unless that of discarded requests is recorded, too.
        late: limit on the lag of finished answers, or None if none was found.
        words: the same as text.
    """

    requests: int
    share: float
    length: SidesDocument | None
    entropy: SidesDocument | None
    reward: SidesDocument | None
    late: LateDocument | None
    words: str


class CorrectionDocument(TypedDict):
    """Advice on an importance-sampling correction, with its reason."""

    advice: Advice
    why: str


class ExplainedDocument(TypedDict):
    """Growth of K3 with its description, see `decomposition`: K3 of the run's beginning and of today, and the share of
    the growth of each part."""

    k3: list[float]
    parts: dict[str, float]
    words: str


class DiagnosisDocument(TypedDict):
    """Judgement of a run, with everything that a reader needs.

    Attributes:
        run: name of the run.
        verdict: overall state.
        since_step: first step concerned, or None if nothing is wrong or it is unknown.
        doubling_steps: steps in which K3 doubles, or None if it does not grow or that is unknown.
        layer: layer at fault, "none" if no action is needed, or "unknown" if a mismatch is unexplained.
        findings: causes with evidence, sorted by urgency, then by share of K3.
        not_measured: missing inputs.
        correction: advice on a correction.
        unexplained: share of today's K3 that no finding explains, or None if unknown.
        level: level of K3, or None if no token could be compared.
        growth: growth of K3 compared with the run's own past.
        why_it_grew: its growth since the run's beginning in parts, or None if unknown.
        lag: safe weight lag, or None if unknown.
        discarded: effect of discarding requests, or None if unknown.
        framework: framework whose settings the findings name, or None if none was recorded.
    """

    run: str
    verdict: Verdict
    since_step: int | None
    doubling_steps: float | None
    layer: Layer | Literal["none"]
    findings: list[FindingDocument]
    not_measured: list[NotMeasuredDocument]
    correction: CorrectionDocument
    unexplained: float | None
    level: LevelDocument | None
    growth: GrowthDocument
    why_it_grew: ExplainedDocument | None
    lag: LagDocument | None
    discarded: DiscardedDocument | None
    framework: str | None


def leading(document: DiagnosisDocument) -> FindingDocument | None:
    """Return the finding that verdict, layer and advice concern, or None if none alarms."""
    if document["verdict"] == "healthy":
        return None
    return next(filter(alarms, document["findings"]), None)


def alarms(finding: FindingDocument) -> bool:
    """Return whether a finding is credible, unexpected for the setup, and not accepted."""
    return finding["urgency"] != "informational" and finding["accepted"] is None and finding["confidence"] >= CREDIBLE
