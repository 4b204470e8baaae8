"""Dry run of thresholds: the messages that they would have sent about recorded runs.

The service's functions evaluate the same steps in the same order. Rules about the present run (judgement, liveness) do
not apply to a recording and are omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from logprobe.alerts.rules.alert import LEVELS, Alert, Context, Message, messages
from logprobe.alerts.rules.steps import Step, next_steps
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.monitor.queries import Source

END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)  # every step of a recording is complete


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a dry run: messages in order, and the number of evaluated steps."""

    run: str
    steps: int
    messages: tuple[Message, ...]


def backtest(source: Source, run: str, thresholds: Sequence[Threshold]) -> Outcome:
    """Apply thresholds to all steps of a run, in order. Raise `QueryError` as the source does."""
    alerts = [Alert(t.name, t.fingerprint, t.steps, t.steps) for t in thresholds]
    context = Context(run=run, now=END_OF_TIME)
    looked, sent = 0, []
    for step in _steps(source, run, {threshold.metric for threshold in thresholds}):
        looked += 1
        alerts = [
            alert.look(threshold.look(step.values.get(threshold.metric)), step=step.step, at=step.at)
            for alert, threshold in zip(alerts, thresholds, strict=True)
        ]
        alerts, due = messages(alerts, context, step=step.step, at=step.at)
        sent += due
    return Outcome(run, looked, tuple(sent))


def _steps(source: Source, run: str, metrics: Collection[str]) -> Iterator[Step]:
    after: int | None = None
    while steps := next_steps(source, {run: after}, metrics, quiet_since=END_OF_TIME)[run]:
        yield from steps
        after = steps[-1].step


def rows(outcome: Outcome) -> list[dict[str, object]]:
    """Return the messages as plain data, in the same order."""
    return [
        {
            "run": outcome.run,
            "step": message.step,
            "state": message.word,
            "severity": LEVELS[message.alert.told.peak],
            "rule": message.alert.rule,
            "value": None if message.alert.seen is None else message.alert.seen.value,
            "since_step": message.alert.told.since_step,
            "words": None if message.alert.seen is None else message.alert.seen.words,
        }
        for message in outcome.messages
    ]
