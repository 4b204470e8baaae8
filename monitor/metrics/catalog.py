"""The catalog: every metric, once. Jobs, labels, alert validation and the docs table derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.metrics.definition import Floats, Metric, PairMetric, StepMetric
from logprobe.monitor.metrics.pair_metrics import PAIR_METRICS
from logprobe.monitor.metrics.step_metrics import STEP_METRICS
from logprobe.monitor.metrics.sums import StepSums

CATALOG: Final[tuple[PairMetric | StepMetric, ...]] = (*PAIR_METRICS, *STEP_METRICS)
_BY_KEY: Final[Mapping[str, PairMetric | StepMetric]] = MappingProxyType(
    {key: metric for metric in CATALOG for key in metric.keys()}  # noqa: SIM118 -- `keys` of a metric, not of a mapping
)
KEYS: Final[tuple[str, ...]] = tuple(_BY_KEY)


def metric(key: str) -> Metric:
    """The declaration behind a stored key such as ``backend.k3_kl``.

    Raises:
        ConfigurationError: there is no such metric.
    """
    if key not in _BY_KEY:
        raise ConfigurationError(f"there is no metric {key!r}; `logprobe metrics --list` names them all")
    return _BY_KEY[key]


def evaluate(step: StepSums) -> dict[str, Floats]:
    """Every metric of every group: `KEYS` → array [G], NaN for null. Infinite values are null, too."""
    return {key: _evaluate(key, declared, step) for key, declared in _BY_KEY.items()}


def _evaluate(key: str, declared: PairMetric | StepMetric, step: StepSums) -> NDArray[np.float64]:
    if isinstance(declared, PairMetric):
        values = declared.value(step.pair(key.split(".")[0]))
    else:
        values = declared.value(step)
    return np.where(np.isfinite(values), values, np.nan)
