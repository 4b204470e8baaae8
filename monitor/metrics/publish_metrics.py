"""How long a step's weights took to reach the engines, as trainer and engines recorded it; see ``sql/step_publications.sql``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from logprobe.monitor.metrics.definition import Floats, StepMetric
from logprobe.monitor.metrics.sums import Groups, StepSums


def _published(function: Callable[[Groups, Floats], Floats], name: str) -> Callable[[StepSums], Floats]:
    """Over the replicas of which a duration is known; null where it is of none."""

    def value(step: StepSums) -> Floats:
        if step.publications is None:
            return np.full(step.groups.size, np.nan)
        seconds: Floats = getattr(step.publications, name)
        known = ~np.isnan(seconds)
        return function(step.publications.groups.where(known), seconds[known])

    return value


def _publication_metrics(name: str, key: str, label: str, words: str, formula: str) -> tuple[StepMetric, ...]:
    def declare(suffix: str, function: Callable[[Groups, Floats], Floats]) -> StepMetric:
        return StepMetric(
            key=f"{key}_seconds_{suffix}",
            label=f"{label}, {suffix}",
            words=words,
            formula=f"{suffix} over versions and replicas of ({formula})",
            unit="seconds",
            worse="higher",
            grain="count",
            needs=("weights",),
            value=_published(function, name),
        )

    return declare("mean", Groups.mean), declare("max", Groups.max)


def _replicas(step: StepSums) -> Floats:
    """Null, not 0, where nobody recorded the weights at all."""
    if step.publications is None:
        return np.full(step.groups.size, np.nan)
    groups, delay = step.publications.groups, step.publications.delay
    return np.where(groups.count() > 0, groups.sum(~np.isnan(delay)), np.nan)


PUBLISH_METRICS: Final[tuple[StepMetric, ...]] = (
    *_publication_metrics(
        "delay",
        "publish_delay",
        "Publish delay",
        "Time until an engine had the weights that the step produced. It starts at the earliest recorded event: the "
        "update requested, or its transfer started. Replicas that do not report are left out: see publish_replicas.",
        "applied_at − earliest of requested_at, started_at",
    ),
    *_publication_metrics(
        "resume_delay",
        "publish_resume",
        "Publish to resume",
        "Like publish_delay, until the engine resumed generating.",
        "resumed_at − earliest of requested_at, started_at",
    ),
    *_publication_metrics(
        "pause",
        "update_pause",
        "Pause for an update",
        "How long an engine paused generation for the update. Null, not 0, if it did not pause.",
        "resumed_at − requested_at of the engine",
    ),
    StepMetric(
        key="publish_replicas",
        label="Replicas updated",
        words="How many replicas have the step's weights, by known publish delay; if fewer than exist, a replica "
        "hangs, or does not report.",
        formula="count of (version, replica) with a publish delay",
        unit="replicas",
        worse="lower",
        grain="count",
        needs=("weights",),
        value=_replicas,
    ),
)
