"""Ratio of a run's metric to its baseline's per block, with the band of noise and margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

from logprobe.monitor.judging.parity.trajectories import Block, Trajectory


@dataclass(frozen=True, slots=True)
class Ratio:
    """One block with its middle on the axis, the ratio of run to baseline, and the band as ratios (`low` ≤ `high`)."""

    at: float
    value: float
    low: float
    high: float


def ratios(trajectory: Trajectory, width: float = 1.0) -> tuple[Ratio, ...]:
    """Return ratio and band of each block. Omit a block whose baseline is 0 without a floor.

    Args:
        trajectory: trajectory of one metric.
        width: cell width, see `Comparison.widths`.
    """
    by_block = (_ratio(block, width) for block in trajectory.blocks)
    return tuple(ratio for ratio in by_block if ratio is not None)


def _ratio(block: Block, width: float) -> Ratio | None:
    reference, value = block.reference, block.value
    if 0 <= reference < block.low:  # the band stands around a floor: smaller values are compared, and drawn, as that
        reference = math.sqrt(block.low * block.high)
        value = max(value, reference)
    if not reference:
        return None
    low, high = sorted((block.low / reference, block.high / reference))
    return Ratio(width * (block.first_step + block.last_step) / 2, value / reference, low, high)
