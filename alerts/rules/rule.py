"""Alert rules as data: what is watched, when it is wrong, for how long, and the notification text.

A rule's condition either looks at every step in order (`StepCondition`: it can be evaluated again, and gives the same) or at how
things are now (`PresentCondition`: diagnosis, acknowledgements, heartbeats).
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from logprobe.collectors.kernel.pairs import PAIRS, RatioPair
from logprobe.monitor.analysis.slices import DIMENSIONS, TAG
from logprobe.monitor.diagnosis.result import Layer, Verdict
from logprobe.monitor.metrics.catalog import KEYS, metric
from logprobe.monitor.metrics.definition import Metric

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
Word = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=80)]
Steps = Annotated[int, Field(ge=0, le=100_000)]
Window = Annotated[int, Field(ge=1, le=1_000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def span(text: str) -> timedelta:
    """``90s``, ``10m``, ``2h`` or ``1d``. Raises `ValueError`.

    >>> span("90s") == span("1.5m")
    True
    """
    unit = _UNITS.get(text.strip()[-1:])
    try:
        return timedelta(**{unit or "": float(text.strip()[:-1])})
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a duration; write 90s, 10m, 2h or 1d") from None


Span = Annotated[
    timedelta,
    BeforeValidator(lambda value: span(value) if isinstance(value, str) else value),
    PlainSerializer(lambda value: f"{value.total_seconds():g}s", return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9.]+[smhd]$"}),
    Field(ge=timedelta(seconds=1)),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Threshold(_Model):
    """The metric is beyond a fixed value: `above` it, `below` it, or outside the two.

    With a `window`, the median of the last measured steps is compared. `clear`: the value it has to come back to; between the two
    nothing changes.
    """

    kind: Literal["threshold"]
    above: Finite | None = None
    below: Finite | None = None
    clear: Finite | None = None
    window: Window = 1

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if self.above is None and self.below is None:
            raise ValueError("give `above`, `below`, or both")
        if self.above is not None and self.below is not None:
            if self.below >= self.above:
                raise ValueError("`below` must be less than `above`: the metric is fine between the two")
            if self.clear is not None:
                raise ValueError("`clear` goes with one of `above` and `below`; with both, leave it out")
        elif self.clear is not None:
            _check_side(self.above, self.below, self.clear)
        return self


class Ratio(_Model):
    """The metric has grown against the run's own frozen baseline: short and long recent median both exceed multiples of it.

    Windows in measured steps. `clear`: the short median has to come back to this multiple.
    """

    kind: Literal["ratio"]
    short: Window = 10
    above: Factor
    long: Window = 40
    above_long: Factor
    clear: Factor
    floor: Factor = 1e-5

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if self.short > self.long:
            raise ValueError("`short` is longer than `long`")
        _check_side(self.above, None, self.clear)
        return self


class Growth(_Model):
    """The verdict on growth that diagnosis and dashboard show, as it is, with its own windows and hysteresis."""

    kind: Literal["growth"]
    level: Literal["growing", "critical"]


class Trend(_Model):
    """The metric doubles (or halves) within so many steps, by a robust line through its logarithm over `window` measured steps.

    Wrong only when even the flattest line of the 95 % interval rises (or falls). `clear`: it takes more steps than that.
    """

    kind: Literal["trend"]
    window: Annotated[int, Field(ge=10, le=1_000)] = 100
    doubling_within: Factor | None = None
    halving_within: Factor | None = None
    clear: Factor | None = None

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if (self.doubling_within is None) == (self.halving_within is None):
            raise ValueError("give either `doubling_within` or `halving_within`")
        if self.clear is not None and self.clear < self.within:
            raise ValueError("`clear` must be more steps than the rule allows")
        return self

    @property
    def within(self) -> float:
        """Steps, whichever way."""
        return self.doubling_within or self.halving_within or 0.0


class Calibration(_Model):
    """The mean importance ratio is off 1, and neither chance nor a heavy tail explains it: of its own metric, `ratio_mean`.

    Medians over `window` measured steps: off by more than `by`, by five standard errors of that many steps, and by more of K3 than lag
    makes (`off_one` of the diagnosis says why). Where few tokens carry the mean (effective sample size) nothing is known.
    """

    kind: Literal["calibration"]
    by: Factor = 0.05
    window: Window = 20


class Absent(_Model):
    """The metric has no value. `once_seen`: only after it had one in this run."""

    kind: Literal["absent"]
    once_seen: bool = True


class Nonfinite(_Model):
    """More than `above` tokens of the step have a log-prob that is not finite, or cannot be one."""

    kind: Literal["nonfinite"]
    above: Annotated[int, Field(ge=0)] = 0


class Exact(_Model):
    """Engine and trainer differ in some token, in a run that was identical to the last bit before.

    `expected`: the run is meant to be identical, so any difference counts from the first step on.
    """

    kind: Literal["exact"]
    expected: bool = False


class Diagnosed(_Model):
    """The diagnosis names one of `causes`, or any cause of `layers`, with at least this confidence; or its verdict is one of `verdicts`.

    `for` and `keep_firing` count the steps for which it stands: since the finding's first step, and not before a diagnosis that did not
    name it.
    """

    kind: Literal["diagnosis"]
    causes: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    verdicts: tuple[Verdict, ...] = ()

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if self.verdicts and (self.causes or self.layers):
            raise ValueError("`verdicts` goes without `causes` and `layers`")
        if not self.causes and not self.layers and not self.verdicts:
            raise ValueError("give `causes`, `layers`, or both; or `verdicts`")
        return self


class Unacknowledged(_Model):
    """The trainer has not confirmed a correction within the steps that the correction's policy gives it."""

    kind: Literal["unacknowledged"]


class Doubled(_Model):
    """Sequences are in the store more than once: every total of their steps is too large."""

    kind: Literal["doubled"]


Event = Literal["no_new_step", "collector_stopped", "plugin_missing", "ended_silently", "host_failed"]


class DeadMan(_Model):
    """What should have come did not.

    `no_new_step`: for longer than `times` the median step time, and than `floor`. `collector_stopped`: one collector sent no
    heartbeat for `floor` while others did. `plugin_missing`: the trainer relies on the engine's records and none came. `ended_silently`:
    neither data nor heartbeats came, and no collector closed. `host_failed`: a process that recorded died of an error.
    """

    kind: Literal["dead_man"]
    event: Event
    times: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 6.0
    floor: Span = timedelta(minutes=10)
    steps: Annotated[int, Field(ge=1)] = 3  # trained without an engine's record, before its plugin counts as missing


StepCondition = Threshold | Calibration | Ratio | Growth | Trend | Absent | Nonfinite | Exact
PresentCondition = Diagnosed | Unacknowledged | Doubled | DeadMan
Condition = Annotated[StepCondition | PresentCondition, Field(discriminator="kind")]
CONDITIONS: Final[dict[str, type[BaseModel]]] = {
    model.model_fields["kind"].annotation.__args__[0]: model  # type: ignore[union-attr]
    for model in (
        Threshold,
        Ratio,
        Growth,
        Trend,
        Absent,
        Nonfinite,
        Exact,
        Calibration,
        Diagnosed,
        Unacknowledged,
        Doubled,
        DeadMan,
    )
}
_NEED_METRIC: Final = (Threshold, Calibration, Ratio, Growth, Trend, Absent)


class Annotations(_Model):
    """Notification text besides the numbers. Empty: the condition speaks for itself."""

    summary: str = ""
    description: str = ""
    runbook: str = ""
    fix: str | None = None


class Rule(_Model):
    """One thing to be told about.

    `for`: steps in a row that the condition must hold; `keep_firing`: steps in a row that it must be cleared. `cause`: of the rules of
    one cause only the most severe speaks.
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
        needs_metric = isinstance(self.when, _NEED_METRIC)
        if needs_metric != (self.metric is not None):
            word = "needs" if needs_metric else "takes no"
            raise ValueError(f"a condition of kind {self.when.kind!r} {word} `metric`")
        if self.metric is not None:
            _check_metric(self.metric, self.pair)
            if isinstance(self.when, Calibration) and not (self.key or "").endswith(".ratio_mean"):
                raise ValueError("a condition of kind 'calibration' goes with the metric ratio_mean")
        elif self.slice is not None:
            raise ValueError("`slice` goes with a metric")
        counts = not isinstance(self.when, PresentCondition) or isinstance(self.when, Diagnosed)
        if not counts and (self.for_ or self.keep_firing):
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
    def document(self) -> dict[str, Any]:
        """As JSON has it; not to be changed."""
        return self.model_dump(mode="json", by_alias=True)


class ForRuns(_Model):
    """Rules for the runs whose name matches a pattern, on top of those for all."""

    match: str
    rules: tuple[Rule, ...]


class RuleSet(_Model):
    """All rules of a home; with `defaults`, those that are shipped are among them.

    `tell_within`: news older than this is recorded and not told, so that looking at an old run for the first time disturbs nobody.
    """

    defaults: bool = True
    tell_within: Span = timedelta(hours=24)
    rules: tuple[Rule, ...] = ()
    runs: tuple[ForRuns, ...] = ()


def _check_side(above: float | None, below: float | None, clear: float) -> None:
    if (above is not None and clear > above) or (below is not None and clear < below):
        raise ValueError("`clear` is on the wrong side: the value has to return to it")


def _check_metric(name: str, pair: RatioPair | None) -> None:
    """Raises `ValueError`, with near matches, when there is no such metric of such a pair."""
    if name in KEYS:
        if pair is not None:
            raise ValueError(f"the metric {name!r} has no pair, or includes it already; omit `pair`")
        return
    key = f"{pair or 'backend'}.{name}"
    if key in KEYS:
        return
    of_pair = [known.removeprefix(f"{pair or 'backend'}.") for known in KEYS]
    near = get_close_matches(name, of_pair, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`logprobe metrics --list` lists them"
    raise ValueError(f"there is no metric {name!r}; {hint}")
