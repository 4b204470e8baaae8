"""From evidence to a diagnosis: rule by rule, layer by layer, each finding taken out before the next look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from logprobe.monitor.analysis.slices import Steps
from logprobe.monitor.diagnosis.causes import BY_NAME, CAUSES
from logprobe.monitor.diagnosis.causes.cause import CREDIBLE
from logprobe.monitor.diagnosis.decomposition import Decomposition, decomposed
from logprobe.monitor.diagnosis.evidence.evidence import SLIGHT, Evidence
from logprobe.monitor.diagnosis.evidence.gather import gather
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, log_mean
from logprobe.monitor.diagnosis.evidence.samples import Samples
from logprobe.monitor.diagnosis.levels import in_words, level_of
from logprobe.monitor.diagnosis.named import with_settings
from logprobe.monitor.diagnosis.proven import latest, with_experiment
from logprobe.monitor.diagnosis.result import (
    GROWS,
    LAYERS,
    Acceptance,
    Correction,
    Diagnosis,
    Finding,
    Layer,
    Level,
    Verdict,
)
from logprobe.monitor.diagnosis.shares import shares_of
from logprobe.monitor.diagnosis.unmeasured import not_measured
from logprobe.monitor.diagnosis.urgency import STANDARDS, weighed
from logprobe.monitor.queries import Source

_FEWEST: Final = 200  # tokens without which nothing can be called healthy
_NOTHING: Final = 0.05  # share of K3: next to nothing


def diagnose(
    source: Source,
    run: str,
    *,
    steps: Steps = (None, None),
    accepted: Sequence[Acceptance] = (),
    samples: Samples | None = None,
) -> Diagnosis:
    """What is wrong with a run.

    Args:
        source: a `Reader` or a `Store`.
        run: which run.
        steps: first and last, both included; None: no bound.
        accepted: causes that people live with.
        samples: where raw tokens are kept until the run is diagnosed again; None: nowhere.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    evidence = gather(source, run, steps=steps, samples=samples)
    return with_settings(with_experiment(conclude(evidence, accepted), latest(source, run, "bisect")), evidence.setup)


def conclude(evidence: Evidence, accepted: Sequence[Acceptance] = ()) -> Diagnosis:
    """The diagnosis that follows from evidence, and from what people have accepted. Pure."""
    explanations = _explained(evidence)
    semantic = {
        explanation.finding.cause: explanation.fraction
        for explanation in explanations
        if explanation.finding.layer == "semantic"
    }
    shares, unexplained = shares_of(evidence, [explanation.finding for explanation in explanations], semantic)
    level = level_of(evidence)
    findings = weighed(_ordered(explanations), shares, level, accepted, trend=evidence.growth.verdict)
    findings = _qualified(_without_symptoms(sorted(findings, key=_rank)))
    why = decomposed(evidence)
    layer = _layer(evidence, findings, level)
    verdict = _verdict(evidence, findings, level)
    if verdict == "calibrating" and layer == "none" and level is not None and level.settled:
        verdict = "healthy"
    return Diagnosis(
        run=evidence.run,
        verdict=verdict,
        since_step=_since(evidence, findings),
        doubling_steps=evidence.growth.doubling_steps,
        layer=layer,
        findings=tuple(findings),
        not_measured=not_measured(evidence, findings),
        correction=_correction(findings, layer, verdict, level, why),
        unexplained=unexplained,
        level=level,
        growth=evidence.growth,
        why_it_grew=why,
        settings=evidence.settings,
    )


def _rank(finding: Finding) -> tuple[bool, int, float]:
    """What is credible and asks for something first; within that what explains most of K3, unknown shares as all; then
    by confidence × effect."""
    urgency = ("act", "watch", "informational").index(finding.urgency)
    return finding.confidence < CREDIBLE, urgency, -(1.0 if finding.share is None else finding.share)


def _without_symptoms(findings: Sequence[Finding]) -> list[Finding]:
    """Growth that explains next to nothing once others have their share says how K3 goes, not why: it is no cause
    beside one that does."""
    explained = any(not _grows(f) and (f.growth_share or 0.0) >= STANDARDS.material for f in _deciding(findings))
    return [f for f in findings if not (explained and _grows(f) and (f.share or 0.0) < _NOTHING)]


def _grows(finding: Finding) -> bool:
    return BY_NAME[finding.cause].kind == "growth"


def _qualified(findings: Sequence[Finding]) -> list[Finding]:
    """Remedies that are a correction only, say what forbids one."""
    vetoing = next((finding.cause for finding in findings if finding.vetoes), None)
    if vetoing is None:
        return list(findings)
    return [replace(f, fix=_uncorrected(f, vetoing)) if f.layer == "objective" else f for f in findings]


def _uncorrected(finding: Finding, vetoing: str) -> str:
    left = BY_NAME[finding.cause].fix_corrected or finding.fix
    return f"First {vetoing}, and no correction until it is fixed. Then: {left[0].lower()}{left[1:]}"


def find(evidence: Evidence) -> list[Finding]:
    """All findings, ordered by confidence × effect. Within a layer the strongest is explained first, then what is left
    is looked at."""
    return _ordered(_explained(evidence))


@dataclass(frozen=True, slots=True)
class _Explained:
    """A finding, and the fraction of the gap that explaining it leaves nothing of."""

    finding: Finding
    fraction: float


def _explained(evidence: Evidence) -> list[_Explained]:
    """All findings in the order in which they are explained."""
    explanations: list[_Explained] = []
    for layer in LAYERS:
        while not evidence.hidden and (best := _strongest(evidence, layer)) is not None:
            left = BY_NAME[best.cause].without(evidence, best)
            explanations.append(_Explained(best, _fraction(evidence, left, best)))
            evidence = left
    return explanations


def _ordered(explanations: Sequence[_Explained]) -> list[Finding]:
    return sorted((explanation.finding for explanation in explanations), key=lambda finding: -finding.weight)


def _fraction(before: Evidence, after: Evidence, finding: Finding) -> float:
    """By the tokens that are left, or by the finding's effect where none are; 0 where tokens are left out of means
    anyway."""
    if BY_NAME[finding.cause].hides:
        return 1.0
    if finding.cause == "miscalibrated_logprobs":
        deviation, k3 = finding.evidence["ratio_deviation"], finding.evidence["k3_kl"]
        return float(min(max((deviation - log_mean(deviation)) / k3, 0.0), 1.0))
    if before.tokens is None or not len(before.tokens):
        return finding.effect if after.scaled and not before.scaled else 0.0
    if after.tokens is before.tokens or after.tokens is None:
        return 0.0
    since = -math.inf if finding.since_step is None else finding.since_step
    whole, left = (tokens.where(tokens.step >= since).k3 for tokens in (before.tokens, after.tokens))
    if not len(left) or not whole.mean() > 0:
        return 0.0
    return min(max(1 - float(left.mean() / whole.mean()), 0.0), 1.0)


def _strongest(evidence: Evidence, layer: Layer) -> Finding | None:
    causes = (cause for cause in CAUSES if cause.layer == layer and cause.name not in evidence.explained)
    findings = [finding for finding in (cause.find(evidence) for cause in causes) if finding is not None]
    # What differs between requests of one step is no matter of time: it comes before what changed from step to step.
    return max(
        findings, key=lambda finding: (BY_NAME[finding.cause].contrast is not None, finding.weight), default=None
    )


def _deciding(findings: Sequence[Finding]) -> list[Finding]:
    """Those that decide something: credible, and neither normal for the setup nor accepted."""
    return [f for f in findings if f.confidence >= CREDIBLE and f.urgency != "informational"]


def _since(evidence: Evidence, findings: Sequence[Finding]) -> int | None:
    """Where the first finding that decides something says, or where growth began."""
    return next((f.since_step for f in _deciding(findings) if f.since_step is not None), evidence.growth.since_step)


def _layer(
    evidence: Evidence, findings: Sequence[Finding], level: Level | None
) -> Literal["semantic", "inference_path", "objective", "none", "unknown"]:
    deciding = _deciding(findings)
    deciding = [f for f in deciding if f.vetoes] or [f for f in deciding if f.urgency == "act"] or deciding
    first = next((layer for layer in LAYERS if any(f.layer == layer for f in deciding)), None)
    if first is not None:
        return first
    watched = any(finding.urgency != "informational" for finding in findings)
    return "unknown" if watched or _unexplained(evidence, findings, level) else "none"


def _unexplained(evidence: Evidence, findings: Sequence[Finding], level: Level | None) -> bool:
    """Whether there is too little to tell, or something is off that no rule has a name for."""
    gap = evidence.gap
    off = abs(gap.ratio.z) > SIGNIFICANT and abs(gap.ratio.value) > gap.k3 > SLIGHT
    named = any((f.confidence >= CREDIBLE and f.layer != "objective") or f.accepted is not None for f in findings)
    status = "" if level is None else level.status
    high = status == "not measured" or (status in {"above", "far above"} and not named)
    return gap.n < _FEWEST or high or off or (evidence.growth.verdict in GROWS and not _lived_with(findings))


def _lived_with(findings: Sequence[Finding]) -> bool:
    """Whether most of the growth is accepted."""
    return sum(f.growth_share or 0.0 for f in findings if f.accepted is not None) >= 1 - STANDARDS.material


def _verdict(evidence: Evidence, findings: Sequence[Finding], level: Level | None) -> Verdict:
    """K3 over time, unless something was wrong before any baseline, or leaves nothing to compare."""
    trend = evidence.growth.verdict
    if trend in GROWS and _lived_with(findings):
        trend = "healthy"
    acting = [finding for finding in _deciding(findings) if finding.urgency == "act"]
    if trend in GROWS:
        return trend
    far = level is not None and level.status == "far above" and not any(f.accepted is not None for f in findings)
    if far or any(finding.layer != "objective" for finding in acting):
        return "critical"
    if trend == "no_data":
        return trend
    return "growing" if any(map(_grows, acting)) else trend


def _correction(
    findings: Sequence[Finding], layer: str, verdict: Verdict, level: Level | None, why: Decomposition | None
) -> Correction:
    vetoing = [finding for finding in findings if finding.vetoes]
    if vetoing:
        first = min(vetoing, key=lambda finding: LAYERS.index(finding.layer))
        return Correction("do_not_enable", f"fix {first.cause} first: a correction would hide it")
    acting = any(finding.layer == "objective" and finding.urgency == "act" for finding in _deciding(findings))
    if acting and why is not None and why.grew and why.parts["composition"].share_interval[0] >= 1 - STANDARDS.material:
        return Correction(
            "do_not_enable", f"{why.words}; tokens of one kind differ as they did, so there is nothing to correct"
        )
    if acting:
        return Correction(
            "enable", "engine and trainer agree and the policies differ, which importance sampling corrects"
        )
    if layer == "unknown":
        return Correction(
            "do_not_enable", "semantic and inference-path faults could not be ruled out; see what was not measured"
        )
    if verdict in GROWS:
        return Correction("do_not_enable", "what was found is no off-policyness, which importance sampling corrects")
    return Correction("not_needed", f"K3 does not grow; {in_words(level)}")
