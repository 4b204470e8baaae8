"""SYNTHETIC series of K3 per step, seeded: healthy runs with all that makes healthy runs look uneasy, and runs that grow.

Log K3 is a level, a slow drift as entropy falls or rises, autocorrelated noise and spikes that return; growth is a straight line in the
logarithm from its onset on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

STEPS: Final = 1000


@dataclass(frozen=True)
class Trend:
    """What one run does. `memory`: AR(1) coefficient; `spread`: standard deviation of log K3; `drift`: of it over the whole run."""

    level: float = 1e-3
    memory: float = 0.0
    spread: float = 0.2
    drift: float = 0.0
    spikes: float = 0.0  # fraction of steps
    tail: float = np.inf  # degrees of freedom of the noise; infinity: normal
    onset: int | None = None
    doubling: float = 60.0


def series(trend: Trend, seed: int, steps: int = STEPS) -> np.ndarray:
    """K3 of each step, shape [steps]."""
    rng = np.random.default_rng(seed)
    time = np.arange(steps)
    log_k3 = np.log(trend.level) + trend.drift * time / steps + _noise(trend, rng, steps)
    log_k3 += (rng.random(steps) < trend.spikes) * rng.uniform(np.log(3), np.log(30), steps)
    if trend.onset is not None:
        log_k3 += np.log(2) * np.maximum(time - trend.onset, 0) / trend.doubling
    return np.exp(log_k3)


def _noise(trend: Trend, rng: np.random.Generator, steps: int) -> np.ndarray:
    shocks = rng.standard_normal(steps) if np.isinf(trend.tail) else rng.standard_t(trend.tail, steps) / np.sqrt(3)
    shocks *= trend.spread * np.sqrt(1 - trend.memory**2)
    noise = np.empty(steps)
    previous = rng.standard_normal() * trend.spread
    for step in range(steps):
        previous = noise[step] = trend.memory * previous + shocks[step]
    return noise


HEALTHY: Final[dict[str, Trend]] = {
    "white noise": Trend(),
    "wide noise": Trend(spread=0.5),
    "memory of 0.5": Trend(memory=0.5, spread=0.3),
    "memory of 0.9": Trend(memory=0.9, spread=0.3),
    "memory of 0.98": Trend(memory=0.98, spread=0.2),
    "heavy tails": Trend(spread=0.4, tail=3),
    "a twentieth spikes": Trend(spikes=0.05),
    "entropy falls, K3 halves": Trend(memory=0.5, drift=-np.log(2)),
    "entropy rises, K3 up by half": Trend(memory=0.5, drift=np.log(1.5)),
    "all of it": Trend(memory=0.9, spread=0.2, tail=3, spikes=0.02, drift=np.log(1.3)),
    "rounding only": Trend(level=1e-12, spread=0.5),
    "mixture of experts": Trend(level=3e-2, memory=0.5, spread=0.3),
}
