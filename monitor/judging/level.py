"""Compare the level of K3 with the range reported for such a setup."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

import numpy as np

from logprobe.monitor.diagnosis.evidence.evidence import windows
from logprobe.monitor.diagnosis.evidence.setup import FULL_DTYPES, HALF_DTYPES, LOW_DTYPES
from logprobe.monitor.diagnosis.evidence.tokens import on_grid
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import Level
from logprobe.monitor.judging.thresholds import PRIORS, Prior, number

Precision = Literal["full", "half", "bf16"]
GROWS: Final = ("growing", "critical")
_UNKNOWN_TEMPERATURES: Final = tuple(round(0.05 * i, 2) for i in range(2, 41))


def grids(frame: Frame) -> tuple[float, float]:
    """Return the shares of 16-bit logits at engine and trainer; NaN where unknown."""
    tokens = frame.tokens
    if tokens is None or not len(tokens):
        return math.nan, math.nan
    temperatures = {1.0, *(frame.setup.temperatures or _UNKNOWN_TEMPERATURES)}
    return on_grid(tokens, tokens.r, temperatures), on_grid(tokens, tokens.t, temperatures)


def expected(frame: Frame) -> tuple[float, float, bool]:
    """Return the lowest and highest K3 reported for such a setup, and whether the setup is unknown."""
    setup = frame.setup
    engine_grid, trainer_grid = (("bfloat16" if share > number("grid_share") else None) for share in grids(frame))
    engine = _coarsest([*map(str, setup.engine("dtype")[:1]), engine_grid])
    trainer = _coarsest([setup.trainer_dtype, trainer_grid])
    quantized = bool(setup.quantizations)
    experts = True if setup.mixture_of_experts else False if setup.engine("architectures") else None
    if experts and (frame.routing_agreement or 0.0) >= number("routes_agree"):
        experts = False  # what is left with the same experts on both sides is what a dense model has
    nothing = engine is None and trainer is None and not quantized
    rows = [row for row in PRIORS if _fits(row, engine, trainer, experts=experts, quantized=quantized)] or list(PRIORS)
    return min(row.low for row in rows), max(row.high for row in rows), nothing


def far(frame: Frame) -> float:
    """Return the K3 from which on a mismatch is beyond its setup's range.

    Of an unknown setup it is that of dense bf16: a test that asks for more than noise of this size asks for it first.
    """
    _, high, nothing = expected(frame)
    return number("above") * (number("dense") if nothing else high)


def level_of(frame: Frame) -> Level:
    """Judge the level of K3."""
    low, high, nothing = expected(frame)
    k3 = numerics(frame)
    if k3 is None and frame.gap.n >= number("fewest") and frame.gap.k3 <= high:
        k3 = frame.gap.k3  # lag only adds to it
    if k3 is None:
        return Level(None, low, high, "not measured")
    if k3 > number("far_above") * high:
        return Level(k3, low, high, "far above")
    if k3 > number("above") * high:
        return Level(k3, low, high, "above")
    return Level(k3, low, high, "unknown set-up" if nothing else "as expected")


def numerics(frame: Frame) -> float | None:
    """Return K3 of tokens of the trainer's own weights or of unknown age, before it grew; None if there are too few."""
    fewest = number("fewest")
    whole = frame.strata.where(frame.strata.own)
    ends = [whole.within(steps) for steps in windows(frame.measured)]
    if max(end.n for end in ends) < fewest:
        return whole.k3 if whole.n >= fewest else None
    usable = [end for end in ends if end.n >= fewest]
    if ends[1].n < fewest and ends[0].n < fewest:
        return None
    values = [end.k3 for end in usable if math.isfinite(end.k3)]
    if not values:
        return None
    return min(values) if frame.growth.verdict in GROWS else values[-1]


def identical(frame: Frame) -> bool:
    """Whether both sides have the same bits in nearly every token of at least two steps."""
    n = frame.total("n")
    steps = int(np.sum(frame.series["n"] > 0)) if len(frame.series) else 0
    return steps >= number("identical_steps") and frame.total("n_same") >= number("identical_share") * n > 0


def bits_may_agree(frame: Frame) -> bool:
    """Whether equal bits can be the result of two computations: both in float32, or batch-invariant kernels."""
    setup = frame.setup
    invariant = any(bool(value) for value in setup.engine("batch_invariant"))
    full = bool(setup.engine("dtype")) and all(str(d).lower() in FULL_DTYPES for d in setup.engine("dtype"))
    exact = invariant or (full and setup.trainer_full_precision is True and not setup.quantizations)
    return frame.independent is True and exact


def _fits(
    row: Prior, engine: Precision | None, trainer: Precision | None, *, experts: bool | None, quantized: bool
) -> bool:
    return (
        row.quantized == quantized
        and (row.experts is None or experts is None or row.experts == experts)
        and all(
            not allowed or precision is None or precision in allowed
            for allowed, precision in ((row.engine, engine), (row.trainer, trainer))
        )
    )


def _coarsest(dtypes: Iterable[str | None]) -> Precision | None:
    known = [_precision(dtype) for dtype in dtypes if dtype is not None]
    order: tuple[Precision, ...] = ("full", "half", "bf16")
    return max((kind for kind in known if kind is not None), key=order.index, default=None)


def _precision(dtype: str) -> Precision | None:
    name = dtype.lower()
    if name in FULL_DTYPES:
        return "full"
    return "half" if name in HALF_DTYPES else "bf16" if name in LOW_DTYPES else None
