"""Test "declared": contradictory settings of the two sides, and settings that explain noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import Confidence, Finding
from logprobe.monitor.judging.level import grids
from logprobe.monitor.judging.thresholds import number


def declared(frame: Frame) -> Finding | None:
    """Name settings that make the two sides report different distributions."""
    setup, since = frame.setup, frame.start
    if (setup.logprobs_mode or "").endswith("logits"):
        return Finding("unnormalized_logits", Confidence.KNOWN, since, evidence={"logprobs_mode": setup.logprobs_mode})
    applied = [t for t in setup.temperatures if t != 1] or setup.penalties or setup.truncations
    if setup.raw and applied:
        only = setup.temperatures[0] if len(setup.temperatures) == 1 else None
        evidence: dict[str, object] = {"logprobs_mode": setup.logprobs_mode, "temperature": only}
        evidence["calibration_z"] = frame.gap.ratio.z if frame.gap.n else None
        return Finding("raw_logprobs", Confidence.KNOWN, since, evidence=evidence)
    if setup.raw is not False or not frame.gap.k3 > number("slight"):
        return None
    theirs, ours = setup.temperatures, setup.trainer_temperature
    if len(theirs) == 1 and ours is not None and not math.isclose(theirs[0], ours, rel_tol=1e-6):
        evidence = {"engine": theirs[0], "trainer": ours}
        return Finding("temperature_mismatch", Confidence.KNOWN, since, evidence=evidence)
    if setup.penalties:
        return Finding("temperature_mismatch", Confidence.KNOWN, since, evidence={"penalties": listed(setup.penalties)})
    return None


def listed(settings: Mapping[str, object]) -> str:
    """Write settings as text.

    >>> listed({"top_p": 0.9, "top_k": 50})
    'top_p = 0.9, top_k = 50'
    """
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def noise(frame: Frame) -> list[Finding]:
    """Name the reason why two computations of the same weights differ, by settings and by the grid of the values."""
    if not frame.gap.k3 > number("visible_k3"):
        return []
    found = _noise_by_settings(frame) or _noise_by_grid(frame)
    return [] if found is None else [found]


def _noise_by_settings(frame: Frame) -> Finding | None:
    setup = frame.setup
    if setup.quantizations and frame.gap.k3 > number("slight"):
        return Finding("quantized_rollout", Confidence.KNOWN, evidence={"settings": listed(setup.quantizations)})
    if setup.mixture_of_experts and (tail := _tail(frame)) > number("tail_share"):
        return Finding("moe_routing", Confidence.INFERRED, evidence={"share_of_1_percent": tail})
    return None


def _noise_by_grid(frame: Frame) -> Finding | None:
    """Name the side whose logits are on the grid of a 16-bit dtype. Otherwise use the recorded dtype."""
    engine, trainer = (_on_grid(share) for share in grids(frame))
    dtype = frame.setup.engine_low_dtype
    if engine and trainer:
        return Finding("batch_variance", Confidence.INFERRED)
    if trainer and engine is False:
        return Finding("lm_head_precision", Confidence.INFERRED)
    if dtype:
        return Finding("low_precision", Confidence.KNOWN, evidence={"engine_dtype": dtype})
    return Finding("low_precision", Confidence.INFERRED) if engine and trainer is False else None


def _on_grid(share: float) -> bool | None:
    """Return whether values are on the grid, or None if the share is inconclusive."""
    return True if share > number("grid_share") else False if share < number("off_grid_share") else None


def _tail(frame: Frame) -> float:
    """Return the share of K3 from the worst 1 % of the tokens, or 0 if no tokens are kept."""
    tokens = None if frame.tokens is None else frame.tokens.fresh
    if tokens is None or len(tokens) < number("fewest"):
        return 0.0
    top = np.sort(tokens.k3)[::-1]
    return float(top[: max(len(top) // 100, 1)].sum() / max(float(top.sum()), 1e-300))
