"""What follows from a finding: how urgent it is, and whether it forbids a correction.

| cause | share of the gap or of its growth | follows |
|---|---|---|
| semantic | any | vetoes: importance weights of a wrong distribution are wrong whatever their size |
| engine fault (cache, update, replica) | material | act, vetoes |
| engine fault | not material | watch |
| engine fault that has ended | any | watch, informational once it is no part of today; vetoes nothing |
| labels of weights that say too little (no mark, one name for two) | any | watch: no log-prob is wrong by it |
| routes that are returned and not replayed | any | watch: no log-prob is wrong by it |
| noise of precision, quantisation, experts | as the setup should have, or of an unknown setup | informational |
| noise | above what the setup should have, material | watch, or act where far above; vetoes |
| lag | makes a material part of the growth, or adds more than off-policy training is recommended to have | act |
| lag | otherwise | informational; watch where it rose while calibrating |
| growth, jump | any | act where the run's own past says that it grows; watch while calibrating |

Any finding that people have accepted is informational and vetoes nothing, except that a semantic one still vetoes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logprobe.monitor.diagnosis.causes import BY_NAME
from logprobe.monitor.diagnosis.causes.cause import CREDIBLE
from logprobe.monitor.diagnosis.result import GROWS, Acceptance, Finding, Level, Urgency, Verdict
from logprobe.monitor.diagnosis.shares import Share, with_share


@dataclass(frozen=True, slots=True)
class Standards:
    """The settings of this page.

    Attributes:
        material: share of the gap, or of its growth, from which an engine fault forbids a correction.
        minor: effect up to which a semantic finding changes no verdict.
        off_policy: K3 that lag may add: the limit that Tinker recommends (tinker-feedback 22).
        above_noise: times the noise at lag 0 that lag may add, where the noise alone is above that limit.
    """

    material: float = 0.25
    minor: float = 0.5
    off_policy: float = 1e-2
    above_noise: float = 2.0


STANDARDS: Final = Standards()


def weighed(
    findings: Sequence[Finding],
    shares: Mapping[str, Share],
    level: Level | None,
    accepted: Sequence[Acceptance] = (),
    *,
    trend: Verdict = "healthy",
    standards: Standards = STANDARDS,
) -> list[Finding]:
    """The findings with share, urgency, veto and acceptance. `trend`: the verdict on K3 by the run's own past."""
    weigh = _Weigh(shares, level, standards, trend)
    return [_accepted(weigh.finding(finding), shares.get(finding.cause, Share()), accepted) for finding in findings]


@dataclass(frozen=True, slots=True)
class _Weigh:
    shares: Mapping[str, Share]
    level: Level | None
    standards: Standards
    trend: Verdict

    def finding(self, finding: Finding) -> Finding:
        share = self.shares.get(finding.cause, Share())
        urgency = self._urgency(finding, share)
        vetoes = finding.confidence >= CREDIBLE and self._forbids(finding, share, urgency)
        return replace(with_share(finding, share), urgency=urgency, vetoes=vetoes)

    def _urgency(self, finding: Finding, share: Share) -> Urgency:
        kind = BY_NAME[finding.cause].kind
        if kind == "noise":
            return self._noise()
        if finding.evidence.get("until") is not None:
            return "watch" if share.now else "informational"
        if finding.confidence < CREDIBLE or kind == "note":
            return "watch"
        return self._of_layer(finding, share)

    def _of_layer(self, finding: Finding, share: Share) -> Urgency:
        if finding.layer == "semantic":
            return "act" if finding.effect > self.standards.minor else "watch"
        kind = BY_NAME[finding.cause].kind
        if kind == "growth":
            return self._growth()
        if kind == "lag":
            return self._lag(share)
        return "act" if self._material(share) else "watch"

    def _noise(self) -> Urgency:
        """Noise that the setup should have is explained; so is noise of which it is unknown what it should be."""
        status = "not measured" if self.level is None else self.level.status
        return "act" if status == "far above" else "watch" if status == "above" else "informational"

    def _growth(self) -> Urgency:
        """The rule over the run's own past decides; a bend that it does not see is no growth, or not yet."""
        return "act" if self.trend in GROWS else "watch" if self.trend == "calibrating" else "informational"

    def _lag(self, share: Share) -> Urgency:
        limit = max(self.standards.off_policy, self.standards.above_noise * self._noise_level())
        if (share.k3 or 0.0) > limit:
            return "act"
        return self._growth() if (share.growth or 0.0) >= self.standards.material else "informational"

    def _noise_level(self) -> float:
        """K3 at lag 0, or the most that it may be; 0 where nothing is known of it."""
        if self.level is None:
            return 0.0
        return (self.level.high or 0.0) if self.level.numerics is None else self.level.numerics

    def _material(self, share: Share) -> bool:
        """What is not known may be all of it; what is known in part may be as much as its interval says."""
        if share.now is None:
            return True
        most = share.now if share.interval is None else max(share.now, share.interval[1])
        return max(most, share.growth or 0.0) >= self.standards.material

    def _forbids(self, finding: Finding, share: Share, urgency: Urgency) -> bool:
        if finding.layer == "semantic":
            return True
        if BY_NAME[finding.cause].kind == "note" or finding.evidence.get("until") is not None:
            return False
        return finding.layer == "inference_path" and urgency != "informational" and self._material(share)


def _accepted(finding: Finding, share: Share, accepted: Sequence[Acceptance]) -> Finding:
    for acceptance in accepted:
        if acceptance.cause == finding.cause:
            limit = acceptance.limit(share.k3_first or None)
            if limit is None or (share.k3 or 0.0) <= limit:
                vetoes = finding.vetoes and finding.layer == "semantic"
                return replace(finding, accepted=acceptance, urgency="informational", vetoes=vetoes)
            finding = replace(finding, evidence={**finding.evidence, "accepted_up_to": limit})
    return finding
