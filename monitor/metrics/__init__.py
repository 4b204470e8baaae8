"""Every number of logprobe, defined once: `compute` on arrays, `CATALOG` for what there is.

from logprobe.monitor import metrics

values = metrics.compute(rollout_logprobs, trainer_logprobs, mask)
values["backend.k3_kl"]
"""

from logprobe.collectors.statistics import Bounds, merge
from logprobe.monitor.metrics.batch import compute, statistics
from logprobe.monitor.metrics.catalog import CATALOG, KEYS, metric
from logprobe.monitor.metrics.definition import Metric

__all__ = ["CATALOG", "KEYS", "Bounds", "Metric", "compute", "merge", "metric", "statistics"]
