"""Compare a metric with that of a reference run, block by block, within tolerance and noise.

Two runs of one configuration never agree step by step. Medians of blocks of steps are therefore compared. The band
around the reference is the larger of the recipe's margin and three standard errors of the difference of two such
medians. Consecutive steps are not independent. The standard error is the larger of two estimates: from the
autocorrelation of steps within blocks, and from the differences of neighbouring blocks. A run leaves the reference if
two consecutive blocks are outside the band on the same side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.parity.recipe import Band

Floats: TypeAlias = NDArray[np.float64]
Trend: TypeAlias = Mapping[int, float]  # step → value; steps without one are left out

_SHORTEST: Final = 10  # steps of a block
_BLOCKS: Final = 15  # wished for
_FEWEST: Final = 4  # blocks: of fewer, two in a row outside would be most
_ERRORS: Final = 3.0  # standard errors of a difference of blocks
_IN_A_ROW: Final = 2  # blocks outside on one side: one alone may be chance
_MAD: Final = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
_MEDIAN: Final = np.pi / 2  # variance of a median over that of a mean
_STRONGEST: Final = 0.95  # autocorrelation that is believed


@dataclass(frozen=True, slots=True)
class Block:
    """Medians of one block of steps, in the metric's unit. `low` and `high` bound the band around the reference."""

    first_step: int
    last_step: int
    value: float
    reference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Comparison of one metric with the reference.

    Attributes:
        metric: key in the catalog.
        label: name of the metric for users.
        verdict: result of the comparison, unknown with too few common steps.
        leaves_step: first step of the block in which the metric leaves the band, or None.
        back_step: first step of the block from which it stays in the band again, or None.
        side: side of the departure, "above" or "below".
        reason: verdict in words.
        blocks: compared blocks.
    """

    metric: str
    label: str
    verdict: Literal["tracks", "leaves", "unknown"]
    reason: str
    leaves_step: int | None = None
    back_step: int | None = None
    side: Literal["above", "below"] | None = None
    blocks: tuple[Block, ...] = ()


def follow(band: Band, run: Trend, reference: Trend) -> Trajectory:
    """Compare one metric of two runs at the steps that both have measured."""
    blocked = in_blocks(run, reference)
    if blocked is None:
        count = len(run.keys() & reference.keys())
        reason = f"{count} common steps with {band.label}; {_FEWEST * _SHORTEST} are needed"
        return Trajectory(band.metric, band.label, "unknown", reason)
    steps_BT, *raw = blocked
    ours_BT, theirs_BT = (scaled(band, values) for values in raw)
    ours_B, theirs_B = np.median(ours_BT, axis=1), np.median(theirs_BT, axis=1)
    noise = float(np.hypot(_error(ours_BT), _error(theirs_BT)))
    width = max(margin(band, theirs_B), _ERRORS * noise)
    outside_B = np.where(ours_B > theirs_B + width, 1, np.where(ours_B < theirs_B - width, -1, 0))
    outside_B[outside_B == {"above": -1, "below": 1, "both": 2}[band.side]] = 0
    limits = (_unscaled(band, limit) for limit in (theirs_B - width, theirs_B + width))
    shown = zip(steps_BT, *(np.median(values, axis=1) for values in raw), *limits, strict=True)
    blocks = tuple(Block(int(block[0]), int(block[-1]), *map(float, values)) for block, *values in shown)
    return _judged(band, outside_B, blocks)


def in_blocks(run: Trend, reference: Trend) -> tuple[NDArray[np.int64], Floats, Floats] | None:
    """Return the common steps in blocks [B, T] with both runs' values, or None for too few. Omit a partial last
    block."""
    steps = np.array(sorted(run.keys() & reference.keys()), np.int64)
    length = max(_SHORTEST, len(steps) // _BLOCKS)
    count = len(steps) // length
    if count < _FEWEST:
        return None
    steps_BT = steps[: count * length].reshape(count, length)
    ours, theirs = (
        np.array([[trend[step] for step in row] for row in steps_BT.tolist()]) for trend in (run, reference)
    )
    return steps_BT, ours, theirs


def _judged(band: Band, outside_B: NDArray[np.int64], blocks: tuple[Block, ...]) -> Trajectory:
    runs = np.lib.stride_tricks.sliding_window_view(outside_B, _IN_A_ROW)
    departures = np.flatnonzero((runs[:, 0] != 0) & (runs == runs[:, :1]).all(axis=1))
    if not len(departures):
        return Trajectory(band.metric, band.label, "tracks", "tracks the reference", blocks=blocks)
    first, last = int(departures[0]), int(departures[-1]) + _IN_A_ROW
    block = blocks[first]
    side: Literal["above", "below"] = "above" if outside_B[first] > 0 else "below"
    back = blocks[last].first_step if last < len(blocks) else None
    words = (
        f"leaves the reference at step {block.first_step} in {band.label}: {block.value:.3g}, reference "
        f"{block.reference:.3g}"
    )
    reason = words if back is None else f"{words}; back at step {back}"
    return Trajectory(band.metric, band.label, "leaves", reason, block.first_step, back, side, blocks)


def scaled(band: Band, values: Floats) -> Floats:
    """Return the values on the scale of `band`, which is logarithmic for a factor."""
    return values if band.factor is None else np.log(np.maximum(values, band.floor))


def _unscaled(band: Band, values: Floats) -> Floats:
    return values if band.factor is None else np.exp(values)


def margin(band: Band, levels_B: Floats) -> float:
    """Return the tolerance of `band` at these reference levels, on the scale of `scaled`."""
    return (
        float(np.log(band.factor)) if band.factor is not None else float((band.fraction or 0) * np.abs(levels_B).max())
    )


def _error(values_BT: Floats) -> float:
    """Return the standard error of a block's median."""
    medians_B = np.median(values_BT, axis=1)
    between = _MAD * float(np.median(np.abs(np.diff(medians_B)))) / np.sqrt(2)
    rest_BT = values_BT - medians_B[:, None]
    spread = _MAD * float(np.median(np.abs(rest_BT)))
    energy = float((rest_BT**2).sum())
    memory = float((rest_BT[:, 1:] * rest_BT[:, :-1]).sum()) / energy if energy else 0.0
    memory = min(max(memory, 0.0), _STRONGEST)
    within = spread * np.sqrt(_MEDIAN * (1 + memory) / (1 - memory) / values_BT.shape[1])
    return float(max(between, within))
