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
class Course:
    """What one run does. `memory`: AR(1) coefficient; `spread`: standard deviation of log K3; `drift`: of it over the whole run."""

    level: float = 1e-3
    memory: float = 0.0
    spread: float = 0.2
    drift: float = 0.0
    spikes: float = 0.0  # fraction of steps
    tail: float = np.inf  # degrees of freedom of the noise; infinity: normal
    onset: int | None = None
    doubling: float = 60.0


def series(course: Course, seed: int, steps: int = STEPS) -> np.ndarray:
    """K3 of each step, shape [steps]."""
    rng = np.random.default_rng(seed)
    time = np.arange(steps)
    log_k3 = np.log(course.level) + course.drift * time / steps + _noise(course, rng, steps)
    log_k3 += (rng.random(steps) < course.spikes) * rng.uniform(np.log(3), np.log(30), steps)
    if course.onset is not None:
        log_k3 += np.log(2) * np.maximum(time - course.onset, 0) / course.doubling
    return np.exp(log_k3)


def _noise(course: Course, rng: np.random.Generator, steps: int) -> np.ndarray:
    shocks = rng.standard_normal(steps) if np.isinf(course.tail) else rng.standard_t(course.tail, steps) / np.sqrt(3)
    shocks *= course.spread * np.sqrt(1 - course.memory**2)
    noise = np.empty(steps)
    previous = rng.standard_normal() * course.spread
    for step in range(steps):
        previous = noise[step] = course.memory * previous + shocks[step]
    return noise


HEALTHY: Final[dict[str, Course]] = {
    "white noise": Course(),
    "wide noise": Course(spread=0.5),
    "memory of 0.5": Course(memory=0.5, spread=0.3),
    "memory of 0.9": Course(memory=0.9, spread=0.3),
    "memory of 0.98": Course(memory=0.98, spread=0.2),
    "heavy tails": Course(spread=0.4, tail=3),
    "a twentieth spikes": Course(spikes=0.05),
    "entropy falls, K3 halves": Course(memory=0.5, drift=-np.log(2)),
    "entropy rises, K3 up by half": Course(memory=0.5, drift=np.log(1.5)),
    "all of it": Course(memory=0.9, spread=0.2, tail=3, spikes=0.02, drift=np.log(1.3)),
    "rounding only": Course(level=1e-12, spread=0.5),
    "mixture of experts": Course(level=3e-2, memory=0.5, spread=0.3),
}
