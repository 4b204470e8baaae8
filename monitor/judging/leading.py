"""Which finding people read first: the one that verdict, layer and advice are about, or the cause that explains it.
Pure.

Works on `Diagnosis.document`, also of earlier versions, whose findings have no share, urgency or veto.
"""

from __future__ import annotations

from typing import Final

from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument, LevelDocument
from logprobe.monitor.judging.result import LAYERS, Layer
from logprobe.monitor.judging.signatures import kind_of

CREDIBLE: Final = 0.5  # from here on a finding decides something
MATERIAL: Final = 0.25  # share of K3 from which a finding explains it
_ORDER: Final[tuple[Layer, ...]] = (*LAYERS, "unknown")


def foremost(document: DiagnosisDocument) -> FindingDocument | None:
    """The finding that verdict, layer, onset and advice are about; None: none alarms or forbids a correction.

    What forbids a correction comes first, semantic before inference path; then, where a correction is advised, the
    objective's; then the most credible.
    """
    if document["verdict"] == "healthy":
        return None
    forbidding = [
        finding for finding in document["findings"] if finding["confidence"] >= CREDIBLE and _forbids(finding)
    ]
    if forbidding:
        return min(forbidding, key=lambda finding: _ORDER.index(finding["layer"]))
    alarming = [finding for finding in document["findings"] if alarms(finding)]
    advised = document["correction"]["advice"] == "enable"
    first = next(iter(alarming), None)
    return next((finding for finding in alarming if advised and finding["layer"] == "objective"), first)


def leading(document: DiagnosisDocument) -> FindingDocument | None:
    """The finding whose name and remedy people read first: `foremost`, or what explains K3 where that one explains
    little of it."""
    first = foremost(document)
    if first is None or _explains(first):
        return first
    most = max(filter(alarms, document["findings"]), key=lambda finding: share_of(finding) or 0.0, default=first)
    return most if (share_of(most) or 0.0) >= MATERIAL else first


def in_reading_order(document: DiagnosisDocument) -> list[FindingDocument]:
    """All findings, the leading one first, then what must be ruled out first, the others in the order of the
    document."""
    first, second = leading(document), foremost(document)
    return sorted(document["findings"], key=lambda finding: (finding is not first, finding is not second))


def alarms(finding: FindingDocument) -> bool:
    """Whether a finding is credible, and neither as expected of the setup nor accepted."""
    urgent = finding.get("urgency", "act") != "informational" and finding.get("accepted") is None
    return bool(urgent and finding["confidence"] >= CREDIBLE)


def share_of(finding: FindingDocument) -> float | None:
    """The share of today's gap that it explains; None: not known."""
    share = finding.get("share")
    return None if share is None else share["now"]


def highest_normal(level: LevelDocument) -> float | None:
    """The most that others report of such a setup; None: not known."""
    expected = level.get("expected")
    return None if expected is None else expected["high"]


def _explains(finding: FindingDocument) -> bool:
    """Whether it makes a material part of the gap, or that is not known; growth of an unknown share says how the gap
    goes, not why."""
    now = share_of(finding)
    return kind_of(finding["cause"]) != "growth" if now is None else now >= MATERIAL


def _forbids(finding: FindingDocument) -> bool:
    """Whether it forbids a correction; a diagnosis of an earlier version did not say, and went by layers."""
    return bool(finding.get("vetoes", finding["layer"] in LAYERS[:2]))
