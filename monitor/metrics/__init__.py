"""Metrics of logprobe: `compute` for arrays in memory, and the `CATALOG`.

from logprobe.monitor import metrics

values = metrics.compute(rollout_logprobs, trainer_logprobs, mask)
values["backend.k3_kl"]
"""

from logprobe.collectors.kernel.statistics import Bounds
from logprobe.monitor.metrics.batch import compute, statistics
from logprobe.monitor.metrics.catalog import CATALOG, KEYS, metric
from logprobe.monitor.metrics.definition import Metric
from logprobe.monitor.metrics.parts import from_statistics, merge

__all__ = ["CATALOG", "KEYS", "Bounds", "Metric", "compute", "from_statistics", "merge", "metric", "statistics"]
