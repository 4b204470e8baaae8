"""What a setting costs: speed and memory of the engine that has it, beside the engine as configured. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from logprobe.monitor.proof.paired import student


@dataclass(frozen=True, slots=True)
class Cost:
    """An engine's: `rates` in tokens/s of rounds over the sample; room for tokens in its KV cache; None: not known."""

    rates: tuple[float, ...] = ()
    kv_tokens: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Mean of the rounds, as a rate is averaged: by time."""
        return statistics.harmonic_mean(self.rates) if self.rates else None


UNMEASURED: Final = Cost()


def speed(arm: Cost, baselines: Sequence[Cost]) -> tuple[float, float, float] | None:
    """Ratio of an arm's speed to the baselines', and its 95 % interval; None: fewer than two rounds of either.

    Rounds of one engine vary less than engines do: what two starts of the same configuration differ by is part of the interval.
    """
    of_starts = [[math.log(rate) for rate in cost.rates] for cost in baselines if len(cost.rates) > 1]
    own = [math.log(rate) for rate in arm.rates]
    if len(own) < 2 or not of_starts:  # noqa: PLR2004 - no variance
        return None
    means = [statistics.fmean(logs) for logs in of_starts]
    between = statistics.variance(means) if len(means) > 1 else 0.0
    within = sum(statistics.variance(logs) / len(logs) for logs in of_starts) / len(of_starts) ** 2
    error = math.sqrt(statistics.variance(own) / len(own) + within + between * (1 + 1 / len(means)))
    width = student(max(len(own) - 1, 2)) * error
    ratio = statistics.fmean(own) - statistics.fmean(means)
    return math.exp(ratio), math.exp(ratio - width), math.exp(ratio + width)
