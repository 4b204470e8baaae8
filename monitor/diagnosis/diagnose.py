"""From evidence to a diagnosis: rule by rule, layer by layer, each finding taken out before the next look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from logprobe.monitor.diagnosis.causes import BY_NAME, CAUSES
from logprobe.monitor.diagnosis.evidence import HEALTHY, SLIGHT, Evidence
from logprobe.monitor.diagnosis.gather import gather
from logprobe.monitor.diagnosis.measures import SIGNIFICANT
from logprobe.monitor.diagnosis.result import LAYERS, Correction, Diagnosis, Finding, Layer, Verdict
from logprobe.monitor.diagnosis.unmeasured import not_measured
from logprobe.monitor.slices import Source, Steps

CREDIBLE: Final = 0.5  # confidence from which a finding decides the layer
_MINOR: Final = 0.5  # effect up to which a semantic finding changes no verdict
_FEWEST: Final = 200  # tokens without which nothing can be called healthy


def diagnose(source: Source, run: str, *, steps: Steps = (None, None)) -> Diagnosis:
    """What is wrong with a run.

    Args:
        source: a `Reader` or a `Store`.
        run: which run.
        steps: first and last, both included; None: no bound.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    return conclude(gather(source, run, steps=steps))


def conclude(evidence: Evidence) -> Diagnosis:
    """The diagnosis that follows from evidence. Pure."""
    findings = find(evidence)
    layer = _layer(evidence, findings)
    verdict = _verdict(evidence, findings)
    growth = evidence.growth
    return Diagnosis(
        run=evidence.run,
        verdict=verdict,
        since_step=_since(evidence, findings),
        doubling_steps=growth.doubling_steps,
        layer=layer,
        findings=tuple(findings),
        not_measured=not_measured(evidence, findings),
        correction=_correction(evidence, findings, layer, verdict),
    )


def find(evidence: Evidence) -> list[Finding]:
    """All findings, ordered by confidence × effect. Within a layer the strongest is explained first, then what is left is looked at."""
    findings: list[Finding] = []
    for layer in LAYERS:
        if evidence.hidden:
            break
        while (best := _strongest(evidence, layer)) is not None:
            findings.append(best)
            evidence = BY_NAME[best.cause].without(evidence)
    return sorted(findings, key=lambda finding: -finding.weight)


def _strongest(evidence: Evidence, layer: Layer) -> Finding | None:
    causes = (cause for cause in CAUSES if cause.layer == layer and cause.name not in evidence.explained)
    found = [finding for finding in (cause.find(evidence) for cause in causes) if finding is not None]
    return max(found, key=lambda finding: finding.weight, default=None)


def _since(evidence: Evidence, findings: Sequence[Finding]) -> int | None:
    """Where the first credible finding says, or where growth began."""
    return next(
        (f.since_step for f in findings if f.since_step is not None and f.confidence >= CREDIBLE),
        evidence.growth.since_step,
    )


def _layer(
    evidence: Evidence, findings: Sequence[Finding]
) -> Literal["semantic", "inference_path", "objective", "none", "unknown"]:
    credible = {finding.layer for finding in findings if finding.confidence >= CREDIBLE}
    first = next((layer for layer in LAYERS if layer in credible), None)
    if first is not None:
        return first
    return "unknown" if findings or _unexplained(evidence) else "none"


def _unexplained(evidence: Evidence) -> bool:
    """Whether there is too little to tell, or something is off that no rule has a name for."""
    gap = evidence.gap
    off = abs(gap.ratio.z) > SIGNIFICANT and abs(gap.ratio.value) > gap.k3 > SLIGHT
    return gap.n < _FEWEST or gap.k3 > HEALTHY or off or evidence.growth.verdict in {"growing", "critical"}


def _verdict(evidence: Evidence, findings: Sequence[Finding]) -> Verdict:
    """The course of K3, unless something is wrong that was there before any baseline."""
    course = evidence.growth.verdict
    if course in {"growing", "critical", "no_data"}:
        return course
    wrong = [
        f
        for f in findings
        if f.confidence >= CREDIBLE and ((f.layer == "semantic" and f.effect > _MINOR) or evidence.gap.k3 > HEALTHY)
    ]
    if any(finding.layer != "objective" for finding in wrong):
        return "critical"
    return "growing" if {"late_growth", "step_jump"} & {finding.cause for finding in wrong} else course


def _correction(evidence: Evidence, findings: Sequence[Finding], layer: str, verdict: Verdict) -> Correction:
    if layer in {"semantic", "inference_path"} and not _harmless(evidence, layer):
        first = next(f for f in findings if f.layer == layer and f.confidence >= CREDIBLE)
        return Correction("do_not_enable", f"fix {first.cause} first: a correction would hide it. {first.fix}")
    if layer == "unknown":
        return Correction(
            "do_not_enable", "semantic and inference-path faults could not be ruled out; see not_measured"
        )
    if layer == "objective" and (verdict in {"growing", "critical"} or evidence.gap.k3 > HEALTHY):
        return Correction(
            "enable", "engine and trainer compute the same and the policies differ: what importance sampling corrects"
        )
    return Correction("not_needed", "the gap is within what is reported as healthy")


def _harmless(evidence: Evidence, layer: str) -> bool:
    return (
        layer == "inference_path"
        and evidence.gap.k3 <= HEALTHY
        and evidence.growth.verdict in {"healthy", "calibrating"}
    )
