"""The log-probs are right and belong to different policies: real off-policyness, which a correction is made for."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.cause import INFERRED, KNOWN, POSSIBLE, RECORDED, Sign
from logprobe.monitor.diagnosis.evidence.change_points import TOLD, Bend, bend, pace
from logprobe.monitor.diagnosis.evidence.evidence import ROUNDING, Evidence, Slices
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, difference
from logprobe.monitor.diagnosis.evidence.strata import rise_of
from logprobe.monitor.diagnosis.result import GROWS, Finding

_FEWEST: Final = 200  # tokens of a lag, or of a window
_ADDS: Final = 1.2  # times the K3 at lag 0; less is no more than the noise of the comparison
_CLEAR_K3: Final = 1e-3  # K3 below which a gap is not put down to lag where no token at lag 0 is there to compare with
_RISES: Final = 1e-4  # K3 below which a rise has no name: rounding that changed
_DOUBLED: Final = 2.0  # times what was there before: less is a matter of degree
_DOUBT: Final = (
    " Updates that stopped arriving (missed_weight_sync) fit the rise almost as well: a weight fingerprint, or a "
    "tensor's checksum at trainer and "
    "engine, tells which."
)
_MOST: Final = 0.5  # of the tokens
_BESIDE_A_SCALE: Final = 0.5  # of its effect: what of K3 a temperature makes is then not known
_UPDATES: Final = 5  # whose K3 is known, before and after
_ENGINE_TOO: Final = (
    "an update that moves the policy further looks so among tokens of older weights, and these are not known to be "
    "any; an engine that "
    "computes otherwise since then looks the same. Weight versions, and the engine's configuration before and after, "
    "tell which."
)


def staleness(evidence: Evidence) -> Sign | None:
    """Tokens of older weights differ, those of the trainer's own do not, or less."""
    old = evidence.slices.where(lambda row: (row.lag or 0) > 0)
    fresh = evidence.slices.where(lambda row: row.lag == 0)
    if old.n < _FEWEST or not _adds(old, fresh):
        return None
    base = fresh.k3 if fresh.n >= _FEWEST else ROUNDING
    lag = sum((row.lag or 0) * row.n for row in old.rows) / old.n
    part = (old.k3 - base) * old.n / max(evidence.gap.k3 * evidence.gap.n, 1e-300)
    jump = _rise(evidence)
    if jump is not None and jump.abrupt:
        part /= jump.ratio  # the same lag made so much less before
    return Sign(
        KNOWN,
        part * (_BESIDE_A_SCALE if evidence.scaled else 1.0),
        {
            "mean_lag": lag,
            "lagging_share": old.n / evidence.slices.n,
            "k3_lagging": old.k3,
            "k3_fresh": fresh.k3,
            "tokens_fresh": fresh.n,
        },
        f"{old.n / evidence.slices.n:.0%} of the tokens come from weights {lag:.2g} versions older than the trainer's, "
        f"and their K3 is {old.k3:.2g}"
        + (
            f" against {fresh.k3:.2g} at lag 0." if fresh.n >= _FEWEST else "; there are none at lag 0 to compare with."
        ),
        since_step=_since(evidence),
    )


def _adds(old: Slices, fresh: Slices) -> bool:
    """Whether older weights make the gap larger, beyond what the comparison may err by."""
    if fresh.n < _FEWEST:
        return old.k3 > _CLEAR_K3
    return old.k3 > max(_ADDS * fresh.k3, ROUNDING) and difference(old.abs_d, fresh.abs_d) > SIGNIFICANT


def _since(evidence: Evidence) -> int | None:
    if evidence.growth.since_step is not None:
        return evidence.growth.since_step
    over = evidence.series.step[evidence.series.k3 > max(_DOUBLED * evidence.first.k3, ROUNDING)]
    return int(over[0]) if len(over) else None


def without_lag(evidence: Evidence, _finding: Finding) -> Evidence:
    """Tokens that are not known to be old."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.fresh
    return evidence.left("staleness", tokens=left, slices=evidence.slices.where(lambda row: not (row.lag or 0) > 0))


def late_growth(evidence: Evidence) -> Sign | None:
    """K3 grew, step by step, after it had been steady."""
    growth, rise = evidence.growth, _rise(evidence)
    ramp = rise is not None and not rise.abrupt
    if _otherwise_explained(evidence) or not (ramp or (growth.verdict in GROWS and rise is None)):
        return None
    since = growth.since_step if growth.since_step is not None else (rise.step if rise else None)
    ratio = growth.ratio if growth.ratio is not None else (rise.ratio if rise else math.nan)
    lead = _lead_of_drift(evidence) if growth.verdict in GROWS or evidence.older else math.inf
    alike = growth.verdict in GROWS and lead < TOLD and (evidence.older or lead > -TOLD)
    return Sign(
        POSSIBLE if evidence.older and lead <= -TOLD else KNOWN if growth.verdict in GROWS else INFERRED,
        1.0,
        {
            "ratio_to_baseline": ratio,
            "baseline": growth.baseline,
            "doubling_steps": growth.doubling_steps,
            "z": rise.z if rise else None,
            "or": "missed_weight_sync" if alike else None,
        },
        f"K3 grew to {ratio:.3g} times its normal since step {since}, gradually, while the log-probs stay calibrated: "
        "training moves away from "
        f"the policy that samples.{_DOUBT if alike else ''}",
        since_step=since,
    )


def _lead_of_drift(evidence: Evidence) -> float:
    """Log-likelihood ratio of a drift over updates that stopped arriving (`pace`); infinite where these are no
    question."""
    own = evidence.own
    today = own is None or bool((own.step >= evidence.now.step.min()).any())
    lead = pace(evidence) if today and "missed_weight_sync" not in evidence.explained else None
    return math.inf if lead is None else lead


def step_jump(evidence: Evidence) -> Sign | None:
    """K3 jumped at one step and stayed up: one update moved the policy far, or the setup changed there."""
    jump = _rise(evidence)
    if jump is None or not jump.abrupt or _otherwise_explained(evidence):
        return None
    told = _an_update_moves_further(evidence, jump.step)
    return Sign(
        INFERRED + RECORDED if told else POSSIBLE,
        1.0,
        {"step": jump.step, "ratio": jump.ratio, "z": jump.z, "update_k3": evidence.update.get(jump.step)},
        f"K3 jumped to {jump.ratio:.3g} times its normal at step {jump.step} and stayed there: "
        + ("from that step on an update moves the policy further than before." if told else _ENGINE_TOO),
        since_step=jump.step,
    )


def _an_update_moves_further(evidence: Evidence, step: int) -> bool:
    """Whether K3 of updates rose, too; or most tokens are of older weights, from which alone an update moves away, and
    nothing says it is the engine.

    What would: tokens of the trainer's own weights that rose, too; without any, an engine whose configuration is not
    recorded or changed.
    """
    before, after = ([k3 for at, k3 in evidence.update.items() if (at >= step) is late] for late in (False, True))
    if min(len(before), len(after)) >= _UPDATES and np.median(after) > _DOUBLED * np.median(before):
        return True
    if evidence.older:
        return len(evidence.setup.engines) == 1
    older, own = evidence.slices.where(lambda row: (row.lag or 0) > 0), evidence.own
    if own is None or older.n <= _MOST * evidence.slices.n:
        return False
    return not rise_of(own, step).value > _DOUBLED - 1


def _rise(evidence: Evidence) -> Bend | None:
    return None if evidence.gap.k3 < _RISES else bend(evidence.series)


def _otherwise_explained(evidence: Evidence) -> bool:
    """Whether a fault is what grew: nothing grows among the tokens that it does not concern."""
    return evidence.scaled or (evidence.rise_explained and not _rest_grows(evidence))


def _rest_grows(evidence: Evidence) -> bool:
    first, now = evidence.first, evidence.now
    return not evidence.rise_left and min(first.n, now.n) >= _FEWEST and now.k3 > _DOUBLED * max(first.k3, ROUNDING)
