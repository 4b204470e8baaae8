"""Words about a correction next to a diagnosis: the advice, or the effect of the active correction.

The banner, the Diagnosis page, `logprobe show` and the incident report share these pure functions.
"""

from __future__ import annotations

from typing import Final

from logprobe.alerts.controller import effect
from logprobe.alerts.controller.refusals import STOPPED
from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.diagnosis import ADVICE
from logprobe.collectors.correction import CorrectionConfig
from logprobe.monitor.judging.document import (
    CorrectionDocument,
    DiagnosisDocument,
    FindingDocument,
    SettingDocument,
    alarms,
)
from logprobe.monitor.judging.signatures import SIGNATURES, UNKNOWN, bounded

OFF: Final = Standing()


def advised(document: DiagnosisDocument, standing: Standing = OFF) -> str:
    """Return advice about the correction of a run, given its diagnosis and standing, or "" if there is none."""
    if not standing.on:
        return _off(document, standing)
    state = _on(standing)
    if any(finding["vetoes"] for finding in document["findings"]):
        return f"{state}, but it hides a fault: {document['correction']['why']}"
    outcome = _outcome(standing) if standing.applied else ""
    return f"{state}{outcome and f'; {outcome}'}"


def advice_words(document: DiagnosisDocument, standing: Standing = OFF) -> str:
    """Return `advised`, or the advice of the diagnosis if there is nothing to switch or judge."""
    correction = document["correction"]
    return advised(document, standing) or f"{ADVICE[correction['advice']]}: {correction['why']}"


def in_force(document: DiagnosisDocument, standing: Standing = OFF) -> CorrectionDocument:
    """Return the advice of a diagnosis, ``{"advice", "why"}``, or the reason why the controller does not follow it."""
    correction = document["correction"]
    held = correction["advice"] == "enable" and not standing.on and standing.control.objection not in {None, STOPPED}
    return {"advice": "do_not_enable", "why": standing.control.waiting or ""} if held else correction


def _off(document: DiagnosisDocument, standing: Standing) -> str:
    correction = in_force(document, standing)
    if correction["advice"] == "not_needed":
        return ""
    advice = f"{ADVICE[correction['advice']]}: {correction['why']}"
    if correction["advice"] == "enable" and standing.control.stopped:
        return f"{advice}; the kill switch is set, so none applies until it is released"
    if document["correction"]["advice"] == "enable" and standing.ended is not None:
        return f"off: the one from step {standing.control.from_step:,} was {standing.ended}"
    return advice


def _on(standing: Standing) -> str:
    control = standing.control
    first = control.from_step if control.applied_from is None else control.applied_from
    since = "an unknown step" if first is None else f"step {first:,}"
    if not standing.applied:
        return f"switched on from {since} ({method(control.config)}), not acknowledged by the trainer yet"
    return f"on since {since} ({method(control.config)})"


def _outcome(standing: Standing) -> str:
    """Return the effect of a correction, with the step of the judgement."""
    told = standing.effect
    return effect.WORDS["too_early"] if told is None else f"as of step {told['step']:,}: {told['words']}"


def method(config: CorrectionConfig | None) -> str:
    """Return a correction's name in the field.

    >>> method(CorrectionConfig(is_level="token", is_mode="mask", is_upper=2.0))
    'MIS'
    >>> method(CorrectionConfig(is_level=None, rs_level="sequence", rs_upper=2.0))
    'rejection sampling'
    """
    if config is None:
        return "unknown correction"
    if config.is_level is None:
        return "rejection sampling" if config.rs_level is not None else "masks only"
    return {"mask": "MIS", "truncate": "TIS"}.get(config.is_mode, "clipped importance weights")


def settings(finding: FindingDocument, standing: Standing = OFF) -> list[SettingDocument]:
    """Return the remedy's settings in the run's framework. Omit settings of a correction once one was tried."""
    tried = standing.on or standing.ended is not None
    return [setting for setting in finding["settings"] if not (tried and setting["corrects"])]


def unnamed(finding: FindingDocument, document: DiagnosisDocument) -> str:
    """Return the reason why an alarming finding of `document` names no setting, or "" if a setting is named."""
    nameless = finding["cause"] == UNKNOWN or finding["settings"] or not alarms(finding)
    if nameless:
        return ""
    if document["framework"] is None:
        return "no setting named: no training framework was recorded"
    also = "; no training framework was recorded" if document["framework"] == "vLLM" else ""
    return f"no setting of {document['framework']} is known to change it{also}"


def remedy(finding: FindingDocument, standing: Standing = OFF) -> str:
    """Return the remedy of a finding. If a correction is on or has ended, omit the advice to switch one on."""
    cause = SIGNATURES.get(finding["cause"])
    tried = standing.on or standing.ended is not None
    if tried and cause is not None and cause.corrected:
        return bounded(cause.corrected, finding["evidence"])
    return finding["fix"]
