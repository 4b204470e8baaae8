"""The one JSON form of a diagnosis: what ``logprobe show --json`` prints, the store keeps, and pages and alerts
read.

What is `NotRequired` is missing in diagnoses that an earlier version stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:  # which makes these documents
    from logprobe.monitor.judging.result import AcceptedBy, Advice, Layer, LevelStatus, Urgency, Verdict


class SettingDocument(TypedDict):
    """A `Setting`."""

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
    """How much of today's K3 gap, and of its growth, a finding explains; None: not known."""

    now: float | None
    interval: list[float | None] | None
    growth: float | None


class AcceptanceDocument(TypedDict):
    """An `Acceptance`, under the cause that it is of."""

    because: str
    up_to: float | None
    was: float | None
    by: str | None
    at: str | None
    source: AcceptedBy


class FindingDocument(TypedDict):
    """A `Finding`."""

    cause: str
    layer: Layer
    confidence: float
    evidence: Mapping[str, Any]
    explanation: str
    fix: str
    since_step: int | None
    settings: NotRequired[list[SettingDocument]]
    share: NotRequired[ShareDocument]
    urgency: NotRequired[Urgency]
    vetoes: NotRequired[bool]
    accepted: NotRequired[AcceptanceDocument | None]


class GrowthDocument(TypedDict):
    """A `Growth`."""

    verdict: Verdict
    since_step: int | None
    baseline: float | None
    ratio: float | None
    doubling_steps: float | None
    doubling_interval: list[Any] | None  # its ends; the upper one is None when growth may have stopped
    reasons: list[str]


class DifferenceDocument(TypedDict):
    """A `Difference`."""

    setting: str
    then: str | None
    now: str | None


class RememberedDocument(TypedDict):
    """A `Remembered`, with its words."""

    runs: int
    low: float
    high: float
    median: float
    differs: list[DifferenceDocument]
    words: str


class ExpectedDocument(TypedDict):
    """The range that others report of such a setup; None: not known."""

    low: float | None
    high: float | None


class LevelDocument(TypedDict):
    """A `Level`."""

    k3: float
    numerics: NotRequired[float | None]
    expected: NotRequired[ExpectedDocument]
    setup: NotRequired[dict[str, str | None]]
    source: str
    status: NotRequired[LevelStatus]
    first: NotRequired[float | None]
    remembered: NotRequired[RememberedDocument | None]
    settled: NotRequired[bool]


class NotMeasuredDocument(TypedDict):
    """A `NotMeasured`."""

    what: str
    why: str
    how: str


class CorrectionDocument(TypedDict):
    """A `Correction`."""

    advice: Advice
    why: str


class PartDocument(TypedDict):
    """What one part adds to the growth of K3, see `decomposition.Part`."""

    k3: float
    interval: list[float]
    share: float
    share_interval: list[float]


class ExplainedDocument(TypedDict):
    """A `decomposition.Decomposition`, with its words."""

    first: list[int]
    now: list[int]
    k3: list[float]
    parts: dict[str, PartDocument]
    words: str


class DiagnosisDocument(TypedDict):
    """A `Diagnosis`."""

    run: str
    verdict: Verdict
    since_step: int | None
    doubling_steps: float | None
    layer: str
    findings: list[FindingDocument]
    not_measured: list[NotMeasuredDocument]
    correction: CorrectionDocument
    unexplained: NotRequired[float | None]
    level: NotRequired[LevelDocument | None]
    growth: NotRequired[GrowthDocument]
    why_it_grew: NotRequired[ExplainedDocument | None]
    framework: NotRequired[str | None]
