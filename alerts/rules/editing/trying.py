"""What one rule would have said in runs that are stored: when it would have been pending and firing, and about which
values.

The same functions as in the service look at the same steps in the same order; only how many steps, and for how long, is
bounded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from logprobe.alerts.rules import backtest
from logprobe.alerts.rules.judging import evaluation
from logprobe.alerts.rules.judging.evaluation import Alert, Context, Transition
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.judging.states import Phase
from logprobe.alerts.rules.rule import Rule
from logprobe.alerts.rules.step_conditions import Calibration, Growth, Ratio, Threshold
from logprobe.monitor.diagnosis.growth.rule import RULE
from logprobe.monitor.queries import Source

MOST_STEPS: Final = 5_000
MOST_SERIES: Final = 4  # slices whose values are shown
_QUIET: Final = {Phase.NORMAL, Phase.NO_DATA}

Span = tuple[str, int, int]  # phase, first step, last step


class Part(TypedDict):
    """A slice of a trial (None: the whole step), with what `Trial` has of it."""

    slice: str | None
    values: list[tuple[int, float | None]]
    spans: list[Span]


class TrialDocument(TypedDict):
    """A `Trial` in JSON. `more_parts`: slices that are left out."""

    run: str
    steps: int
    cut: bool
    fired: list[list[Any]]
    parts: list[Part]
    more_parts: int
    limits: list[tuple[str, float]]


@dataclass(slots=True)
class Trial:
    """One rule on one run.

    Attributes:
        run: which.
        steps: looked at.
        cut: whether there were more.
        fired: (slice or None, first step that fired, last one) of every episode; the last of one that continues is the
            newest step.
        spans: (phase, first step, last step) by slice, of all phases but normal and no data.
        values: (step, value) by slice, as the rule judges them: a median where it has a window.
        limits: (words, value) that they are compared with.
    """

    run: str
    steps: int = 0
    cut: bool = False
    fired: list[tuple[str | None, int, int]] = field(default_factory=list)
    spans: dict[str | None, list[Span]] = field(default_factory=dict)
    values: dict[str | None, list[tuple[int, float | None]]] = field(default_factory=dict)
    limits: list[tuple[str, float]] = field(default_factory=list)

    def document(self) -> TrialDocument:
        """As JSON has it; slices as a list, those that fired first."""
        parts = sorted(self.values, key=lambda part: (part not in self.spans, str(part or "")))[:MOST_SERIES]
        return {
            "run": self.run,
            "steps": self.steps,
            "cut": self.cut,
            "fired": [list(episode) for episode in self.fired],
            "parts": [
                {"slice": part, "values": self.values[part], "spans": self.spans.get(part, [])} for part in parts
            ],
            "more_parts": max(0, len(self.values) - MOST_SERIES),
            "limits": self.limits,
        }


def tried(source: Source, run: str, rule: Rule, *, until: float, detailed: bool = True) -> Trial:
    """`rule` on the first steps of `run`.

    Args:
        source: where the steps are.
        run: which run.
        rule: with a condition on steps.
        until: of `time.monotonic`; what is not looked at by then is left out.
        detailed: whether values and spans are kept, besides what fired.
    """
    trial = Trial(run)
    alerts = evaluation.begin([rule])
    begun: dict[str | None, tuple[Phase, int]] = {}
    for facts in _bounded(_steps(source, run, rule), trial, until):
        for after, moved, _ in evaluation.through_steps(alerts, [rule], [facts], _context(run)):
            alerts = after
            _note(trial, begun, moved, facts.step)
            if detailed:
                _keep(trial, alerts, facts)
    last = _closed(trial, begun)
    trial.fired = [span if span[2] >= 0 else (span[0], span[1], last) for span in trial.fired]
    trial.limits = _limits(rule, alerts) if detailed else []
    return trial


def _context(run: str) -> Context:
    return Context(run=run, now=backtest.END_OF_TIME)


def _steps(source: Source, run: str, rule: Rule) -> Iterator[StepFacts]:
    for batch in backtest.batches(source, run, [rule]):
        yield from batch


def _bounded(steps: Iterable[StepFacts], trial: Trial, until: float) -> Iterator[StepFacts]:
    for facts in steps:
        if trial.steps >= MOST_STEPS or time.monotonic() > until:
            trial.cut = True
            return
        trial.steps += 1
        yield facts


def _note(trial: Trial, begun: dict[str | None, tuple[Phase, int]], moved: Sequence[Transition], step: int) -> None:
    """Phases that ended and began in this step."""
    for transition in moved:
        part, phase = transition.alert.slice, transition.alert.state.phase
        before, first = begun.pop(part, (transition.before, step))
        if before not in _QUIET:
            trial.spans.setdefault(part, []).append((before.value, first, step))
        if phase not in _QUIET:
            begun[part] = (phase, step)
        if phase is Phase.FIRING and before is not Phase.RECOVERING:
            trial.fired.append((part, step, -1))
        elif not phase.active and before.active:
            open_at = next(i for i in range(len(trial.fired) - 1, -1, -1) if trial.fired[i][0] == part)
            trial.fired[open_at] = (part, trial.fired[open_at][1], step)


def _closed(trial: Trial, begun: dict[str | None, tuple[Phase, int]]) -> int:
    """Closes what continues at the end of the run; → its last step."""
    last = max((step for points in trial.values.values() for step, _ in points), default=0)
    last = max([last, *(first for _, first in begun.values())])
    for part, (phase, first) in begun.items():
        trial.spans.setdefault(part, []).append((phase.value, first, last))
    return last


def _keep(trial: Trial, alerts: Sequence[Alert], facts: StepFacts) -> None:
    for alert in alerts:
        if alert.step == facts.step:
            seen = None if alert.observation is None else alert.observation.value
            value = seen if seen is not None and math.isfinite(seen) else None
            trial.values.setdefault(alert.slice, []).append((facts.step, value))


def _limits(rule: Rule, alerts: Sequence[Alert]) -> list[tuple[str, float]]:
    """What the condition compares with, as far as it is one number."""
    when = rule.when
    if isinstance(when, Threshold):
        limits = (("above", when.above), ("below", when.below), ("clear", when.clear))
        return [(word, value) for word, value in limits if value is not None]
    if isinstance(when, Calibration):
        return [("above", 1 + when.by), ("below", 1 - when.by)]
    baseline = next(
        (a.observation.baseline for a in alerts if a.observation is not None and a.observation.baseline is not None),
        None,
    )
    if baseline is None:
        return []
    if isinstance(when, Ratio):
        return [("baseline", baseline), (f"{when.above:g}× baseline", when.above * baseline)]
    if isinstance(when, Growth):
        limit = (RULE.growing if when.level == "growing" else RULE.critical).short_ratio
        return [("baseline", baseline), (f"{limit:g}× baseline", limit * baseline)]
    return []
