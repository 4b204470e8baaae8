"""Messages that thresholds would have sent about recorded runs: for trying them out.

The same functions as in the service look at the same steps in the same order. What looks at a run as it is now
(judgement, liveness) has nothing to look at in a recording, and is left out.
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

from logprobe.alerts.rules.alert import LEVELS, Alert
from logprobe.alerts.rules.steps import Step, next_steps
from logprobe.alerts.rules.telling import Context, Message, messages
from logprobe.alerts.rules.thresholds import Threshold
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
    """Result of a backtest: messages in their order, and how many steps were looked at."""

    run: str
    steps: int
    messages: tuple[Message, ...]


def backtest(source: Source, run: str, thresholds: Sequence[Threshold]) -> Outcome:
    """Apply thresholds to all steps of a run. Raise `QueryError` as the source does."""
    return over(run, _steps(source, run, thresholds), thresholds)


def over(run: str, steps: Iterator[Step] | Sequence[Step], thresholds: Sequence[Threshold]) -> Outcome:
    """Apply thresholds to steps, ascending. Pure."""
    alerts = [Alert(t.name, t.fingerprint, t.steps, t.steps) for t in thresholds]
    context = Context(run=run, now=END_OF_TIME)
    looked, sent = 0, []
    for step in steps:
        looked += 1
        alerts = [
            alert.look(threshold.look(step.values.get(threshold.metric)), step=step.step, at=step.at)
            for alert, threshold in zip(alerts, thresholds, strict=True)
        ]
        alerts, due = messages(alerts, context, step=step.step, at=step.at)
        sent += due
    return Outcome(run, looked, tuple(sent))


def _steps(source: Source, run: str, thresholds: Sequence[Threshold]) -> Iterator[Step]:
    after: int | None = None
    metrics = {run: {threshold.metric for threshold in thresholds}}
    while steps := next_steps(source, {run: after}, metrics, quiet_since=END_OF_TIME)[run]:
        yield from steps
        after = steps[-1].step


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Store, str]]:
    """Open a recorded run (a folder with ``RUN.json``) in a temporary store; with the run's name.

    Raises:
        ConfigurationError: `folder` is no recorded run.
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
    """Return the messages as plain data, in their order."""
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
