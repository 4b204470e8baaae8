"""What the live probe recorded with a step; see `logprobe.monitor.proof.live`."""

from __future__ import annotations

from typing import Final

from logprobe.monitor.metrics.definition import StepMetric

PROBE_METRICS: Final[tuple[StepMetric, ...]] = (
    StepMetric(
        key="probe.k3",
        label="Live probe, K3",
        words="The running engine scored some of its own sequences again, past its caches, with the same weights: the gap to what it reported when "
        "it sampled them. Near 0 unless the engine's state went bad; weight lag is not in it.",
        formula="mean(e^d − d − 1), d = r scored again − r",
        worse="higher",
        needs=("the live probe",),
        value=lambda step: step.stated("probe_k3"),
    ),
    StepMetric(
        key="probe.abs_diff_mean",
        label="Live probe, mean |d|",
        words="Mean absolute difference between what the engine reported and what it says of the same tokens when it scores them again.",
        formula="mean(|r scored again − r|)",
        unit="nats",
        worse="higher",
        needs=("the live probe",),
        value=lambda step: step.stated("probe_abs_diff_mean"),
    ),
)
