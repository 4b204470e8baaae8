"""What a rule sees: the facts of one step, and what a condition makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from logprobe.monitor.analysis import identity
from logprobe.monitor.judging.growth_kept import Judged

# bad: the condition holds. between: neither that nor cleared, so nothing changes. missing: nothing to judge by. error:
# the rule could not be evaluated.
Verdict = Literal["bad", "between", "good", "missing", "error"]
# What a condition remembers from step to step: JSON's types only.
Memory: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step of a run as the rules see it.

    Attributes:
        step: its number.
        at: when its newest record was made.
        values: of metrics, by catalog key and slice (``weight_lag=2``; None: the whole step). None: not measurable.
        slices: names of the slices that exist, by dimension.
        identity: what says whether engine and trainer are identical; None: not known.
        growth: how the growth of K3 was judged at this step; None: no rule asks for it.
    """

    step: int
    at: datetime
    values: Mapping[tuple[str, str | None], float | None] = field(default_factory=dict)
    slices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    identity: identity.StepFacts | None = None
    growth: Judged | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a condition made of the facts; `words` is a sentence for people. Unknown is None."""

    verdict: Verdict
    words: str
    value: float | None = None
    unit: str | None = None  # None: the metric's
    baseline: float | None = None
    since_step: int | None = None
    doubling_steps: float | None = None
    cause: str | None = None
    layer: str | None = None
    fix: str | None = None
