"""What would have fired, and when: rules applied to runs that were recorded, without notifications.

The same functions as in the service look at the same steps in the same order. What looks at the present (diagnosis,
heartbeats) has nothing to look at in a recording, and is left out.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from logprobe.alerts.rules import facts
from logprobe.alerts.rules.judging import evaluation
from logprobe.alerts.rules.judging.evaluation import Alert, Context, Message, Transition
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.rule import PresentCondition, Rule
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.importers.reading import recorded_table
from logprobe.monitor.queries import Source
from logprobe.monitor.recorded import MANIFEST, RecordedRun
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)  # every step of a recording is complete


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run's rules came to: transitions and messages in their order, the steps that were looked at, the state of
    alerts at the end."""

    run: str
    steps: int
    transitions: tuple[Transition, ...]
    messages: tuple[Message, ...]
    alerts: tuple[Alert, ...]


def backtest(source: Source, run: str, rules: Sequence[Rule]) -> Outcome:
    """The rules over all steps of `run`. Raises `QueryError`."""
    stepwise = [rule for rule in rules if not isinstance(rule.when, PresentCondition)]
    return over(run, batches(source, run, stepwise), stepwise)


def batches(source: Source, run: str, rules: Sequence[Rule]) -> Iterator[list[StepFacts]]:
    """The steps of a run as its rules see them."""
    after: int | None = None
    # What is not kept would be judged from the first step for every batch
    grown = facts.growth_of_all(source, run, rules)
    while steps := facts.steps_after(source, run, rules, after, quiet_since=END_OF_TIME, grown=grown):
        yield steps
        after = steps[-1].step


def over(run: str, batches: Iterator[list[StepFacts]], rules: Sequence[Rule]) -> Outcome:
    """The rules over steps, ascending. Pure."""
    alerts = evaluation.begin(rules)
    context = Context(run=run, now=END_OF_TIME)
    looked = 0
    transitions: list[Transition] = []
    messages: list[Message] = []
    for steps in batches:
        looked += len(steps)
        for after, moved, messages_of_step in evaluation.through_steps(alerts, rules, steps, context):
            alerts = after
            transitions += moved
            messages += messages_of_step
    return Outcome(run, looked, tuple(transitions), tuple(messages), tuple(alerts))


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Store, str]]:
    """The store of a recorded run (a folder with ``RUN.json``), made in a temporary place, and the run's name.

    Raises `ConfigurationError` when `folder` is no recorded run.
    """
    with tempfile.TemporaryDirectory(prefix="logprobe-backtest-") as place:
        recorded = RecordedRun(folder, recorded_table)
        writer = SpoolWriter(Path(place), recorded.run, "backtest")
        for kind in recorded.kinds:
            writer.write(kind, recorded.table(kind))
        with Store.open(Home(place)) as store:
            pipeline = Pipeline(store, threading.Event())
            pipeline.ingest(lambda _: None)
            yield store, recorded.run


def is_recorded(name: str) -> bool:
    """Whether `name` is the folder of a recorded run, rather than the name of one in a home."""
    return (Path(name) / MANIFEST).is_file()


def rows(outcome: Outcome) -> list[dict[str, object]]:
    """What was told, as plain data, in its order."""
    return [_row(outcome.run, message) for message in outcome.messages]


def _row(run: str, message: Message) -> dict[str, object]:
    alert, seen = message.alert, message.alert.observation
    return {
        "run": run,
        "step": message.step,
        "state": message.word,
        "severity": alert.rule.severity,
        "rule": alert.rule.name,
        "slice": alert.slice,
        "value": None if seen is None else seen.value,
        "baseline": None if seen is None else seen.baseline,
        "since_step": None if seen is None else seen.since_step,
        "words": None if seen is None else seen.words,
    }
