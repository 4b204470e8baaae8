"""The log-probs are right and belong to different policies: real off-policyness, which a correction is made for."""

from __future__ import annotations

import math
from typing import Final

from logprobe.monitor.diagnosis.causes.cause import INFERRED, KNOWN, Sign
from logprobe.monitor.diagnosis.course import Bend, bend
from logprobe.monitor.diagnosis.evidence import HEALTHY, ROUNDING, Evidence

_FEWEST: Final = 200
_GROWS: Final = ("growing", "critical")
# What also makes the gap rise at a step: once one of these is found, the rise is explained.
_EXPLAINS_RISES: Final = frozenset(
    {"missed_weight_sync", "partial_weight_sync", "stale_prefix_cache", "replica_divergence", "inflight_stale_kv"}
)


def staleness(evidence: Evidence) -> Sign | None:
    """Tokens of older weights differ, those of the trainer's own do not, or less."""
    old = evidence.slices.where(lambda row: (row.lag or 0) > 0)
    fresh = evidence.slices.where(lambda row: row.lag == 0)
    if old.n < _FEWEST or not old.k3 > (HEALTHY if not fresh.n else max(HEALTHY / 10, 2 * fresh.k3)):
        return None
    base = fresh.k3 if fresh.n >= _FEWEST else ROUNDING
    lag = sum((row.lag or 0) * row.n for row in old.rows) / old.n
    part = (old.k3 - base) * old.n / max(evidence.gap.k3 * evidence.gap.n, 1e-300)
    jump = _rise(evidence)
    if jump is not None and jump.abrupt:
        part /= jump.ratio  # the same lag made so much less before
    return Sign(
        KNOWN,
        part * (0.5 if evidence.scaled else 1.0),
        {
            "mean_lag": lag,
            "lagging_share": old.n / evidence.slices.n,
            "k3_lagging": old.k3,
            "k3_fresh": fresh.k3,
            "tokens_fresh": fresh.n,
        },
        f"{old.n / evidence.slices.n:.0%} of the tokens come from weights {lag:.2g} versions older than the trainer's, and their K3 is {old.k3:.2g}"
        + (
            f" against {fresh.k3:.2g} at lag 0." if fresh.n >= _FEWEST else "; there are none at lag 0 to compare with."
        ),
        since_step=_since(evidence),
    )


def _since(evidence: Evidence) -> int | None:
    if evidence.growth.since_step is not None:
        return evidence.growth.since_step
    over = evidence.series.step[evidence.series.k3 > HEALTHY]
    return int(over[0]) if len(over) else None


def without_lag(evidence: Evidence) -> Evidence:
    """Tokens that are not known to be old."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.fresh
    return evidence.left("staleness", tokens=left, slices=evidence.slices.where(lambda row: not (row.lag or 0) > 0))


def late_growth(evidence: Evidence) -> Sign | None:
    """K3 grew, step by step, after it had been steady."""
    growth, found = evidence.growth, _rise(evidence)
    ramp = found is not None and not found.abrupt
    if _otherwise_explained(evidence) or not (ramp or (growth.verdict in _GROWS and found is None)):
        return None
    since = growth.since_step if growth.since_step is not None else (found.step if found else None)
    ratio = growth.ratio if growth.ratio is not None else (found.ratio if found else math.nan)
    return Sign(
        KNOWN if growth.verdict in _GROWS else INFERRED,
        1.0,
        {
            "ratio_to_baseline": ratio,
            "baseline": growth.baseline,
            "doubling_steps": growth.doubling_steps,
            "z": found.z if found else None,
        },
        f"K3 grew to {ratio:.3g} times its normal since step {since}, gradually, while the log-probs stay calibrated: training moves away from "
        "the policy that samples.",
        since_step=since,
    )


def step_jump(evidence: Evidence) -> Sign | None:
    """K3 jumped at one step and stayed up: one update moved the policy far, or the set-up changed there."""
    found = _rise(evidence)
    if found is None or not found.abrupt or _otherwise_explained(evidence):
        return None
    return Sign(
        INFERRED + 0.04,
        1.0,
        {"step": found.step, "ratio": found.ratio, "z": found.z, "update_k3": evidence.update.get(found.step)},
        f"K3 jumped to {found.ratio:.3g} times its normal at step {found.step} and stayed there: from that step on an update moves the policy "
        "further than before.",
        since_step=found.step,
    )


def _rise(evidence: Evidence) -> Bend | None:
    return None if evidence.gap.k3 < HEALTHY / 10 else bend(evidence.series)


def _otherwise_explained(evidence: Evidence) -> bool:
    return evidence.scaled or bool(_EXPLAINS_RISES & evidence.explained)
