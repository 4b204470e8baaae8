"""Alert rules as data: what is watched, when it is wrong, for how long, and the notification text.

A rule's condition either looks at every step in order (`StepCondition`: it can be evaluated again, and gives the same)
or at how things are now (`PresentCondition`: diagnosis, acknowledgements, heartbeats).
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import ConfigDict, Field, field_validator, model_validator

from logprobe.alerts.rules.fields import Model, Span, Steps, Word
from logprobe.alerts.rules.present_conditions import DeadMan, Diagnosed, Doubled, OnPresent, Unacknowledged
from logprobe.alerts.rules.step_conditions import Absent, Calibration, Exact, Growth, Nonfinite, Ratio, Threshold, Trend
from logprobe.collectors.kernel.pairs import PAIRS, RatioPair
from logprobe.monitor.analysis.slices import DIMENSIONS, TAG
from logprobe.monitor.judging.result import Layer
from logprobe.monitor.metrics.catalog import KEYS, metric
from logprobe.monitor.metrics.definition import Metric

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")

StepCondition = Threshold | Ratio | Growth | Trend | Absent | Nonfinite | Exact | Calibration
PresentCondition = Diagnosed | Unacknowledged | Doubled | DeadMan
Condition = Annotated[StepCondition | PresentCondition, Field(discriminator="kind")]
CONDITIONS: Final[dict[str, type[Model]]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model
    for model in (*get_args(StepCondition), *get_args(PresentCondition))
}


class Annotations(Model):
    """Notification text besides the numbers. Empty: the condition speaks for itself."""

    summary: str = ""
    description: str = ""
    runbook: str = ""
    fix: str | None = None


class Rule(Model):
    """One thing to be told about.

    `for`: steps in a row that the condition must hold; `keep_firing`: steps in a row that it must be cleared. `cause`:
    of the rules of one cause only the most severe speaks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: Word
    enabled: bool = True
    severity: Severity = "warning"
    cause: Word | None = None
    layer: Layer | None = None
    metric: str | None = None
    pair: RatioPair | None = None
    slice: str | None = None
    when: Condition
    for_: Steps = Field(default=0, alias="for")
    keep_firing: Steps = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: Annotations = Annotations()

    @field_validator("slice")
    @classmethod
    def _can_be_sliced(cls, value: str | None) -> str | None:
        dimension = (value or "").partition("=")[0]
        if value is None or dimension in DIMENSIONS or (dimension.startswith(TAG) and dimension != TAG):
            return value
        near = get_close_matches(dimension, DIMENSIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(DIMENSIONS)} and {TAG}NAME"
        raise ValueError(f"there is nothing called {dimension!r} to slice by; {hint}")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        needs_metric = self.when.of_metric
        if needs_metric != (self.metric is not None):
            word = "needs" if needs_metric else "takes no"
            raise ValueError(f"a condition of kind {self.when.kind!r} {word} `metric`")
        if self.metric is not None:
            _check_metric(self.metric, self.pair)
            if isinstance(self.when, Calibration) and not (self.key or "").endswith(".ratio_mean"):
                raise ValueError("a condition of kind 'calibration' goes with the metric ratio_mean")
        elif self.slice is not None:
            raise ValueError("`slice` goes with a metric")
        if not self.when.counts_steps and (self.for_ or self.keep_firing):
            raise ValueError(
                f"`for` and `keep_firing` count steps; a condition of kind {self.when.kind!r} has no steps"
            )
        return self

    @property
    def key(self) -> str | None:
        """Of the metric in the catalog: ``backend.k3_kl``."""
        if self.metric is None or self.metric in KEYS:
            return self.metric
        return f"{self.pair or 'backend'}.{self.metric}"

    @property
    def declared(self) -> Metric | None:
        """The metric's declaration in the catalog."""
        return None if self.key is None else metric(self.key)

    @property
    def called(self) -> str:
        """What people call its metric: ``K3``, ``K3 (update)``."""
        if self.declared is None:
            return self.metric or ""
        pair = (self.key or "").partition(".")[0]
        return f"{self.declared.label} ({pair})" if pair in PAIRS and pair != "backend" else self.declared.label

    @property
    def sums_up(self) -> bool:
        """Whether it is about the verdict as a whole, of which other rules may have told a part."""
        return isinstance(self.when, Diagnosed) and bool(self.when.verdicts)

    @property
    def of_pair(self) -> RatioPair | None:
        """The pair that is looked at."""
        if isinstance(self.when, Nonfinite) or (self.key or "").partition(".")[0] in PAIRS:
            return self.pair or "backend"
        return None

    @property
    def reads(self) -> tuple[str, ...]:
        """Catalog keys that its condition looks at; none where it looks at no step."""
        return () if isinstance(self.when, OnPresent) else self.when.reads(self)

    @property
    def fires_when(self) -> str:
        """The condition in words, with how long it has to hold.

        >>> when = {"kind": "threshold", "above": 0.1, "window": 20}
        >>> Rule.model_validate({"name": "high", "metric": "k3_kl", "when": when, "for": 5}).fires_when
        'K3 above 0.1, median of 20 steps, for 5 steps'
        """
        parts = [self.when.words(self.called), "" if self.slice is None else f"in any part by {self.slice}"]
        held = f"for {self.for_} steps" if self.for_ > 1 else ""
        return ", ".join(part for part in (*parts, held) if part)

    @property
    def shared_cause(self) -> str:
        """What the rule has in common with others; by default nothing."""
        return self.cause or self.name

    def __copy__(self) -> Self:
        """Without what follows from the fields: `model_copy` changes them afterwards."""
        copied = super().__copy__()
        for name in ("fingerprint", "document"):
            copied.__dict__.pop(name, None)
        return copied

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that decides when the rule fires: with another one it has to evaluate the run again."""
        judged = self.model_dump_json(include={"metric", "pair", "slice", "when", "for_", "keep_firing"})
        return hashlib.sha256(judged.encode()).hexdigest()[:12]

    @cached_property
    def document(self) -> dict[str, object]:
        """As JSON has it; not to be changed."""
        return self.model_dump(mode="json", by_alias=True)


class ForRuns(Model):
    """Rules for the runs whose name matches a pattern, on top of those for all."""

    match: str
    rules: tuple[Rule, ...]


class RuleSet(Model):
    """All rules of a home; with `defaults`, those that are shipped are among them.

    `tell_within`: news older than this is recorded and not told, so that looking at an old run for the first time
    notifies no one.
    """

    defaults: bool = True
    tell_within: Span = timedelta(hours=24)
    rules: tuple[Rule, ...] = ()
    runs: tuple[ForRuns, ...] = ()


def _check_metric(name: str, pair: RatioPair | None) -> None:
    """Raises `ValueError`, with near matches, when there is no such metric of such a pair."""
    if name in KEYS:
        if pair is not None:
            raise ValueError(f"the metric {name!r} has no pair, or includes it already; omit `pair`")
        return
    key = f"{pair or 'backend'}.{name}"
    if key in KEYS:
        return
    of_pair = [full.removeprefix(f"{pair or 'backend'}.") for full in KEYS]
    near = get_close_matches(name, of_pair, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`logprobe metrics --list` lists them"
    raise ValueError(f"there is no metric {name!r}; {hint}")
