"""Reads what the rules look at, from a running service, a store or a file: the facts of the steps of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.rule import Rule
from logprobe.alerts.rules.step_conditions import Exact, Growth
from logprobe.monitor import queries
from logprobe.monitor.analysis import identity, slices
from logprobe.monitor.judging.growth_kept import Judged, Spans, columns, judged
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.queries import Source

if TYPE_CHECKING:  # pages read growth, and load no database
    from logprobe.monitor.store.store import Store

STEPS_PER_BATCH: Final = 256
_FAR: Final = 1 << 62  # no step is so large
_UNKNOWN: Final = "unknown"  # the slice of sequences of which it is not known where they belong
_BACKEND_COVERAGE: Final = "backend.coverage"
_OF_ENGINE: Final = (_BACKEND_COVERAGE, "total.coverage")

Values = dict[tuple[str, str | None], float | None]


class Asked(NamedTuple):
    """What is going to be asked about a run, and the newest step that was looked at; None: none."""

    rules: Sequence[Rule]
    after: int | None


class _Window(NamedTuple):
    """First and last step of a run that rules are about to look at."""

    rules: Sequence[Rule]
    first: int
    last: int


def steps_after(
    source: Source,
    run: str,
    rules: Sequence[Rule],
    after: int | None,
    *,
    quiet_since: datetime,
    grown: Mapping[int, Judged] | None = None,
) -> list[StepFacts]:
    """Facts of the next steps of one run; see `next_steps`. `grown`: what `growth_of_all` said of the run."""
    by_run = None if grown is None else {run: grown}
    return next_steps(source, {run: Asked(rules, after)}, quiet_since=quiet_since, grown=by_run)[run]


def growth_of_all(source: Source, run: str, rules: Sequence[Rule]) -> Mapping[int, Judged]:
    """The growth of K3 at every step of a run, where `rules` ask for it: once, for code that goes through all of
    them."""
    return judged(source, {run: (-_FAR, _FAR)})[run] if _asks_for_growth(rules) else {}


def next_steps(
    source: Source,
    asked: Mapping[str, Asked],
    *,
    quiet_since: datetime,
    keep: Store | None = None,
    grown: Mapping[str, Mapping[int, Judged]] | None = None,
) -> dict[str, list[StepFacts]]:
    """Facts of the next steps of each run, ascending, at most `STEPS_PER_BATCH` of each.

    Args:
        source: where from.
        asked: by run.
        quiet_since: a step that was computed later may still receive data, and those after it wait with it; so does one
            that waits for the engine's records.
        keep: where the growth of K3 is kept once it is judged; None: nowhere.
        grown: that growth, by run and step, where it is known already; None: it is read, and what is missing is judged.
    """
    due: dict[str, list[queries.AlertSteps]] = {run: [] for run in asked}
    for row in queries.alert_steps(
        source,
        runs=list(asked),
        after=[of_run.after for of_run in asked.values()],
        quiet_since=quiet_since.isoformat(),
        count=STEPS_PER_BATCH,
    ).to_pylist():
        due[row["run"]].append(row)
    windows = {run: _Window(asked[run].rules, rows[0]["step"], rows[-1]["step"]) for run, rows in due.items() if rows}
    values, same = _values(source, windows), _identities(source, windows)
    if grown is None:
        spans = {run: (window.first, window.last) for run, window in windows.items() if _asks_for_growth(window.rules)}
        grown = judged(source, spans, keep=keep)
    facts: dict[str, list[StepFacts]] = {run: [] for run in asked}
    for run, window in windows.items():
        parts = _parts(source, run, window, [row["step"] for row in due[run]], values[run])
        facts[run] = [
            StepFacts(
                step, row["time"], values[run].get(step, {}), parts[step], same.get((run, step)), grown.get(run, {}).get(step)
            )
            for row in due[run]
            for step in (row["step"],)
        ]  # fmt: skip
    return facts


def _asks_for_growth(rules: Sequence[Rule]) -> bool:
    return any(isinstance(rule.when, Growth) and (rule.key, rule.slice) == (K3, None) for rule in rules)


def _spans(windows: Mapping[str, _Window]) -> Spans:
    return columns({run: (window.first, window.last) for run, window in windows.items()})


def _values(source: Source, windows: Mapping[str, _Window]) -> dict[str, dict[int, Values]]:
    metrics = {
        run: {key for rule in window.rules if rule.slice is None for key in rule.reads}
        for run, window in windows.items()
    }
    by_run: dict[str, dict[int, Values]] = {run: {} for run in windows}
    wanted = sorted(set().union(*metrics.values()))
    if wanted:
        rows = queries.alert_values(source, **_spans(windows), metrics=wanted)
        columns = (rows[name].to_pylist() for name in ("run", "step", "metric", "value"))
        for run, step, metric, value in zip(*columns, strict=True):
            if metric in metrics[run]:
                by_run[run].setdefault(step, {})[metric, None] = value
    for run, of_run in by_run.items():
        _leave_out_an_engine_that_is_not_there(source, run, of_run)
    return by_run


def _leave_out_an_engine_that_is_not_there(source: Source, run: str, values: Mapping[int, Values]) -> None:
    """Coverage of the engine's log-probs says nothing about a run that has no engine."""
    if any((of_step.get((_BACKEND_COVERAGE, None)) or 0.0) > 0 for of_step in values.values()):
        return
    stated = [of_step for of_step in values.values() if any((key, None) in of_step for key in _OF_ENGINE)]
    if stated and not queries.alert_engine(source, run=run)["in_use"][0].as_py():
        for of_step in stated:
            for key in _OF_ENGINE:
                of_step.pop((key, None), None)


def _parts(
    source: Source, run: str, window: _Window, steps: Sequence[int], values: dict[int, Values]
) -> dict[int, dict[str, tuple[str, ...]]]:
    """Names of the slices of each step by dimension; their metrics are added to `values`."""
    parts: dict[int, dict[str, tuple[str, ...]]] = {step: {} for step in steps}
    for dimension, metrics in _sliced(window.rules).items():
        table = slices.by(source, run, dimension, steps=(window.first, window.last), metrics=metrics, per_step=True)
        _add_slices(table, dimension, values, parts)
    return parts


def _sliced(rules: Sequence[Rule]) -> Mapping[str, list[str]]:
    """Metrics that are looked at by slice, by dimension."""
    sliced: dict[str, set[str]] = {}
    for rule in rules:
        if rule.slice is not None:
            sliced.setdefault(rule.slice.partition("=")[0], set()).update(rule.reads)
    return {dimension: sorted(metrics) for dimension, metrics in sliced.items()}


def _add_slices(
    table: pa.Table, dimension: str, values: dict[int, Values], parts: dict[int, dict[str, tuple[str, ...]]]
) -> None:
    for row in table.to_pylist():
        name = row["slice"] if row["slice"] is not None else _UNKNOWN
        step = row["step"]
        if step in parts:
            parts[step][dimension] = (*parts[step].get(dimension, ()), name)
            of_slice: Values = {(key, f"{dimension}={name}"): value for key, value in row.items() if key in KEYS}
            values.setdefault(step, {}).update(of_slice)


def _identities(source: Source, windows: Mapping[str, _Window]) -> dict[tuple[str, int], identity.StepFacts]:
    """What says whether engine and trainer are identical, by run and step."""
    asking = {
        run: window for run, window in windows.items() if any(isinstance(rule.when, Exact) for rule in window.rules)
    }
    if not asking:
        return {}
    rows = queries.slice_identity(source, **_spans(asking))
    return dict(
        zip(zip(rows["run"].to_pylist(), rows["step"].to_pylist(), strict=True), identity.facts_of(rows), strict=True)
    )
