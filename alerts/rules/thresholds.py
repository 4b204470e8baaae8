"""Thresholds of users on metrics, from the section ``alerts`` of the settings.

A threshold fires after some consecutive steps beyond its limit.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from logprobe.alerts.notification import CONTROLLER, UNDELIVERED
from logprobe.alerts.rules.alert import LEVELS, Seen, Severity
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.judgement import JUDGEMENT
from logprobe.monitor.metrics.catalog import KEYS, metric
from logprobe.monitor.metrics.definition import Metric
from logprobe.monitor.number_text import number
from logprobe.monitor.settings import limits, located, settings_file
from logprobe.monitor.settings.located import Table

SECTION: Final = "alerts"
LIVENESS: Final = "liveness"  # rule of the alert that follows a run's records
BIT_EQUALITY: Final = "bit_equality"  # of runs that claim or showed it
_RESERVED: Final = (JUDGEMENT, LIVENESS, BIT_EQUALITY, CONTROLLER, UNDELIVERED, "incident")
_MASKED: Final = frozenset({"clipped_frac", "clip_fraction_high", "clip_fraction_low"})  # shares a correction masks
_PAIR: Final = "backend"  # of a metric that is named without one

TEMPLATE: Final = """\
alerts:
  - name: few-effective-samples   # any name
    metric: ess                   # `logprobe show --metrics`; of the pair backend unless it names one: update.ess
    below: 0.3                    # or `above`
    steps: 10                     # measured steps in a row, also to resolve (default: 5)
    severity: warning             # info | warning (default) | critical
    runs: "prod-*"                # default: every run
"""


def _key(name: str) -> str:
    """Return the catalog key of a metric. Raise `ValueError` for an unknown metric."""
    found = next((key for key in (name, f"{_PAIR}.{name}") if key in KEYS), None)
    if found is None:
        short = [key.removeprefix(f"{_PAIR}.") for key in KEYS]
        near = get_close_matches(name, short, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`logprobe show --metrics` lists them"
        raise ValueError(f"unknown metric {name!r}; {hint}")
    return found


def _free(name: str) -> str:
    if name in _RESERVED:
        raise ValueError(f"{name!r} is the name of a built-in alert; choose another one")
    return name


_Limit = Annotated[float, Field(allow_inf_nan=False)]


class Threshold(settings_file.Settings):
    """A user's threshold on a metric."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=80), AfterValidator(_free)]
    """name of the alert"""
    metric: Annotated[str, AfterValidator(_key)]
    """metric of the catalog, of the pair backend unless it names one: update.ess"""
    above: _Limit | None = None
    """fires above; give either this or `below`"""
    below: _Limit | None = None
    """fires below"""
    steps: Annotated[int, Field(ge=1, le=100_000)] = 5
    """measured steps in a row that are beyond the limit, and likewise within it to resolve"""
    severity: Severity = "warning"
    """info, warning or critical"""
    runs: str = "*"
    """pattern of run names"""

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("a threshold needs one limit; give either `above` or `below`")
        return self

    @property
    def declared(self) -> Metric:
        """Declaration of the metric in the catalog."""
        return metric(self.metric)

    @property
    def called(self) -> str:
        """Label of the metric, with its pair unless the pair is `backend`."""
        pair = self.metric.partition(".")[0] if "." in self.metric else _PAIR
        return self.declared.label if pair == _PAIR else f"{self.declared.label} ({pair})"

    @property
    def fires_when(self) -> str:
        """Condition in words.

        >>> Threshold.model_validate({"name": "high", "metric": "k3_kl", "above": 0.1}).fires_when
        'K3 above 0.1 for 5 steps'
        """
        side, limit = ("above", self.above) if self.above is not None else ("below", self.below)
        return f"{self.called} {side} {limit:g} for {self.steps} step{'' if self.steps == 1 else 's'}"

    @property
    def fingerprint(self) -> str:
        """Digest of all fields that decide when the threshold fires."""
        judged = (self.metric, self.above, self.below, self.steps, self.severity)
        return hashlib.sha256(repr(judged).encode()).hexdigest()[:12]

    def look(self, value: float | None, *, grows: bool = False) -> Seen:
        """Compare the value of one step with the limit. None and NaN mean unmeasured.

        `grows`: true if K3 grows in this step. A share of masked tokens that falls meanwhile is no sign of health, and
        resolves nothing: a policy that moves away puts ever less probability on the tokens that were masked.
        """
        if value is None or math.isnan(value):
            return Seen(None, f"{self.called} was not measured")
        beyond = value > self.above if self.above is not None else self.below is not None and value < self.below
        limit = f"at most {self.above:g}" if self.above is not None else f"at least {self.below:g}"
        words = f"{self.called} is {number(value)}; the limit is {limit}"
        if grows and not beyond and self.metric.rpartition(".")[2] in _MASKED:
            return Seen(None, f"{words}; K3 grows, so a smaller share is no sign of health", value, self.declared.unit)
        return Seen(LEVELS.index(self.severity) if beyond else 0, words, value, self.declared.unit)


def _distinct(thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    twice = [name for name, count in Counter(threshold.name for threshold in thresholds).items() if count > 1]
    if twice:
        raise ValueError(f"several alerts are called {twice[0]!r}; give each its own name")
    return thresholds


_KIND: Final = TypeAdapter(Annotated[tuple[Threshold, ...], AfterValidator(_distinct)])


def of_home(home: Path) -> tuple[Threshold, ...]:
    """Return the thresholds of a data directory. Raise `ConfigurationError` with file and line."""
    return _checked(settings_file.section(home, SECTION))


def of_file(file: Path) -> tuple[Threshold, ...]:
    """Return the thresholds of another settings file. Ignore its other sections.

    Raises:
        ConfigurationError: the file is unreadable, or its section is invalid. The message names file and line.
    """
    try:
        text = limits.read_text(file, limits.SETTINGS)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read ({error}); check its path and permissions") from error
    return _checked(settings_file.given(located.parse(text, str(file)), SECTION))


def _checked(section: settings_file.Section | None) -> tuple[Threshold, ...]:
    if settings_file.is_empty(section):
        return ()
    if isinstance(section, Table):
        raise ConfigurationError(f"{section.place}: `{SECTION}` must be a list of thresholds; see docs/alerts.md")
    return settings_file.checked(section, SECTION, _KIND)


def for_run(thresholds: Iterable[Threshold], run: str) -> tuple[Threshold, ...]:
    """Return the thresholds that apply to a run."""
    return tuple(threshold for threshold in thresholds if fnmatchcase(run, threshold.runs))
