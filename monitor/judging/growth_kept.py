"""The growth of a run's K3, judged once: each complete step when the alerts first look at it, kept in the table
``step_growth``.

Alerts read what is kept of each step; the diagnosis and comparisons go on from the newest. A step that was computed
again with another value, a configuration change that was recorded late, and another rule make the run be judged all
over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypedDict

import pyarrow as pa

from logprobe.monitor import queries
from logprobe.monitor.judging.growth import Change, Tracker, judge
from logprobe.monitor.judging.growth_rule import RULE
from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.result import Growth, Verdict
from logprobe.monitor.judging.setup import from_documents
from logprobe.monitor.queries import Source

if TYPE_CHECKING:  # pages read growth, and load no database
    from logprobe.monitor.store.store import Store

_GROWN: Final = ("growing", "critical")
_RULE: Final = sha256(repr(RULE).encode()).hexdigest()[:16]
_KEPT: Final = pa.schema({
    "run": pa.string(), "step": pa.int64(), "value": pa.float64(), "verdict": pa.string(), "baseline": pa.float64(), "ratio": pa.float64(),
    "since_step": pa.int64(), "doubling_steps": pa.float64(), "reasons": pa.list_(pa.string()),
})  # fmt: skip
_STATES: Final = pa.schema({
    "run": pa.string(), "step": pa.int64(), "revision": pa.int64(), "rule": pa.string(), "changes": pa.list_(pa.int64()), "state": pa.string(),
})  # fmt: skip
_NONE: Final = -(1 << 62)  # before every step


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rule says at a step.

    Attributes:
        step: which one.
        verdict: as of it.
        baseline: K3 of the run's own normal; None: not set yet.
        ratio: recent median over the baseline; None: not known.
        since_step: where growth began; None unless growing or critical.
        doubling_steps: in which K3 doubles; None: it does not, or that is not known.
        reasons: in words; empty unless growing or critical.
    """

    step: int
    verdict: Verdict
    baseline: float | None = None
    ratio: float | None = None
    since_step: int | None = None
    doubling_steps: float | None = None
    reasons: Sequence[str] = ()


def take(tracker: Tracker, step: int, value: float | None) -> Judged:
    """The judgement of the next step of a run."""
    point = tracker.add(step, value)
    if point.verdict not in _GROWN:
        return Judged(step, point.verdict, point.baseline, point.short_ratio)
    grown = tracker.verdict()  # costs a regression
    return Judged(
        step, point.verdict, point.baseline, point.short_ratio, grown.since_step, grown.doubling_steps, grown.reasons
    )


def judged(
    source: Source, spans: Mapping[str, tuple[int, int]], *, keep: Store | None = None
) -> dict[str, dict[int, Judged]]:
    """The judgements of some steps of runs, by run and step.

    Args:
        source: where steps and earlier judgements are read.
        spans: first and last step by run; all up to the last are complete.
        keep: where to keep what is judged now; by one thread at a time. None: nowhere.

    Raises `StoreError` and `QueryError`.
    """
    by_run: dict[str, dict[int, Judged]] = {run: {} for run in spans}
    if not spans:
        return by_run
    begun = _begun(source, list(spans))
    kept = {
        run: (first, min(last, begun[run].last)) for run, (first, last) in spans.items() if begun[run].last >= first
    }
    for row in queries.growth_window(source, **columns(kept)).to_pylist() if kept else ():
        by_run[row["run"]][row["step"]] = Judged(
            row["step"],
            row["verdict"],
            row["baseline"],
            row["ratio"],
            row["since_step"],
            row["doubling_steps"],
            row["reasons"],
        )
    ahead = {run: (begun[run].last + 1, last) for run, (_, last) in spans.items() if begun[run].last < last}
    for run, judgements in _go_on(source, begun, ahead, keep).items():
        by_run[run] |= {judgement.step: judgement for judgement in judgements if judgement.step >= spans[run][0]}
    return by_run


def growth_of(
    source: Source,
    run: str,
    steps: Sequence[int],
    values: Iterable[float | None],
) -> Growth:
    """The verdict on K3 by the run's own past.

    Args:
        source: where earlier judgements and the engine setups of `run` are read; each has its own baseline.
        run: which run.
        steps: its steps from the first on, ascending.
        values: K3 of the pair `backend` at each; None or NaN where it was not measured.
    """
    measured = [value if value is not None and math.isfinite(value) else None for value in values]
    begun = _begun(source, [run])[run]
    if begun.last == _NONE or not steps or begun.last > steps[-1]:
        return judge(steps, measured, config_changes=begun.changes, band=begun.band, setup=begun.setup)
    ahead = [at for at, step in enumerate(steps) if step > begun.last]
    begun.tracker.follow([steps[at] for at in ahead], [measured[at] for at in ahead], begun.changes_ahead)
    return begun.tracker.verdict()


@dataclass(frozen=True, slots=True)
class Now:
    """A run's growth as of its newest step, whether that is complete or not."""

    step: int
    revision: int  # of the run's newest summary
    verdict: Verdict
    changed_step: int  # since which the verdict has been this one; steps that were judged for good before count as one


def growth_now(source: Source, runs: Sequence[str]) -> dict[str, Now]:
    """Continues from what is kept to the newest step of each run, and keeps nothing: a step that is still arriving may
    change its K3."""
    begun = _begun(source, runs)
    by_run = {
        run: Now(kept.last, kept.revision, kept.tracker.state_now(), kept.last)
        for run, kept in begun.items()
        if kept.last != _NONE
    }
    spans = {run: (kept.last + 1, -_NONE) for run, kept in begun.items()}
    for row in queries.growth_values(source, **columns(spans)).to_pylist():
        kept, before = begun[row["run"]], by_run.get(row["run"])
        kept.reach(row["step"])
        verdict = kept.tracker.add(row["step"], row["value"]).verdict
        since = before.changed_step if before is not None and before.verdict == verdict else row["step"]
        by_run[row["run"]] = Now(row["step"], kept.revision, verdict, since)
    return by_run


@dataclass(slots=True)
class _Begun:
    """From where a run's judgement continues: `last` is the last step that was judged; `changes`: of its engines'
    setup, which began as `setup`.

    `revision`: of the newest computed step when this was read. What is computed later is looked at the next time, new
    or not.
    """

    tracker: Tracker
    last: int
    revision: int
    changes: Sequence[Change]
    setup: str | None = None
    band: float | None = None

    @property
    def changes_ahead(self) -> list[Change]:
        return [change for change in self.changes if change[0] > self.last]

    def reach(self, step: int) -> None:
        """`step` comes next."""
        for change in self.changes_ahead:
            if change[0] <= step:
                self.tracker.recalibrate(change)
        self.last = step


def _begun(source: Source, runs: Sequence[str]) -> dict[str, _Begun]:
    rows = queries.growth_states(source, runs=runs).to_pylist()
    touched = {row["run"]: (row["first_touched"], row["step"]) for row in rows if row["first_touched"] is not None}
    changed = set(queries.growth_changed(source, **columns(touched))["run"].to_pylist()) if touched else set()
    by_run = {}
    for row in rows:
        setup: str | None = None
        changes: list[Change] = []
        if row["configs"] > 1:  # reading them looks at every sequence
            setups = queries.diagnosis_config_changes(source, run=row["run"]).to_pylist()
            setup = setups[0]["setup"] if setups else None
            changes = [(change["step"], change["setup"]) for change in setups[1:]]
        stands = row["step"] is not None and row["rule"] == _RULE and row["run"] not in changed
        if stands and row["changes"] == [step for step, _ in changes if step <= row["step"]]:
            begun = _Begun(Tracker(RULE, json.loads(row["state"])), row["step"], row["newest"], changes, setup)
        else:
            begun = _Begun(Tracker(RULE), _NONE, row["newest"], changes, setup)
        if begun.changes_ahead == changes:
            begun.tracker.begin(setup)
        by_run[row["run"]] = begun
    _know_set_ups(source, by_run, {row["run"]: row["configs"] for row in rows})
    return by_run


def _know_set_ups(source: Source, begun: Mapping[str, _Begun], configs: Mapping[str, int]) -> None:
    """Reads the configurations of runs that have others than were known."""
    new = [run for run, state in begun.items() if state.tracker.configs != configs[run]]
    rows = queries.growth_setups(source, runs=new).to_pylist() if new else []
    for run in new:
        state = begun[run]
        state.band = band_of(from_documents([row for row in rows if row["run"] == run]))
        state.tracker.know(state.band, configs[run])


class Spans(TypedDict):
    """A span of steps of each of several runs, as statements take it."""

    runs: list[str]
    first: list[int]
    last: list[int]


def columns(spans: Mapping[str, tuple[int, int]]) -> Spans:
    """The parameters of a statement about a span of steps of each of several runs."""
    return {
        "runs": list(spans),
        "first": [first for first, _ in spans.values()],
        "last": [last for _, last in spans.values()],
    }


def _go_on(
    source: Source, begun: Mapping[str, _Begun], spans: Mapping[str, tuple[int, int]], keep: Store | None
) -> dict[str, list[Judged]]:
    """Judges the steps of some runs that were not judged yet."""
    if not spans:
        return {}
    by_run: dict[str, list[Judged]] = {run: [] for run in spans}
    kept = []
    for row in queries.growth_values(source, **columns(spans)).to_pylist():
        run, of_run = row["run"], begun[row["run"]]
        of_run.reach(row["step"])
        judgement = take(of_run.tracker, row["step"], row["value"])
        of_run.last = judgement.step
        by_run[run].append(judgement)
        kept.append({"run": run, "value": row["value"], **asdict(judgement)})
    if keep is not None and kept:
        states = [_state(run, begun[run]) for run, judgements in by_run.items() if judgements]
        with keep.transaction() as cursor:
            keep.execute(cursor, "replace", pa.Table.from_pylist(kept, _KEPT), table="step_growth")
            keep.execute(cursor, "replace", pa.Table.from_pylist(states, _STATES), table="growth_states")
    return by_run


def _state(run: str, begun: _Begun) -> dict[str, object]:
    changes = [step for step, _ in begun.changes if step <= begun.last]
    state = json.dumps(begun.tracker.state())
    return {
        "run": run,
        "step": begun.last,
        "revision": begun.revision,
        "rule": _RULE,
        "changes": changes,
        "state": state,
    }
