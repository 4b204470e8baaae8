"""Catalog of all metrics. Jobs, labels, alert validation and the docs table derive from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

import numpy as np

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
    """Return the declaration of a stored key such as ``backend.k3_kl``.

    Raises:
        ConfigurationError: unknown metric.
    """
    if key not in _BY_KEY:
        of_pairs = [name for name in KEYS if name.endswith(f".{key}")]
        begun = [name for name in KEYS if name.partition(".")[2].startswith(f"{key}_")]
        near = ", ".join(of_pairs or begun or get_close_matches(key, KEYS)) or "logprobe.monitor.metrics.KEYS"
        raise ConfigurationError(f"there is no metric {key!r}; did you mean one of these: {near}?")
    return _BY_KEY[key]


def evaluate(step: StepSums, keys: Iterable[str] = KEYS) -> dict[str, Floats]:
    """Return the metrics of every group as key → array [G], with NaN for null. Infinite values also become null."""
    return {key: _evaluate(key, _BY_KEY[key], step) for key in keys}


def _evaluate(key: str, declared: PairMetric | StepMetric, step: StepSums) -> Floats:
    if isinstance(declared, PairMetric):
        return _finite(declared.value(step.pair(key.partition(".")[0])))
    return _finite(declared.value(step))


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
