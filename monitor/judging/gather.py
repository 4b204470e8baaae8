"""Read a frame from a store, with stored queries and one bounded sample of raw tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.analysis.slices import Steps
from logprobe.monitor.judging.discarding import Sampled
from logprobe.monitor.judging.frame import Column, Frame, Pair, Placed, Strata
from logprobe.monitor.judging.growth import Change, Tracker
from logprobe.monitor.judging.judgement import GROWS, Growth
from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.memory import remembered, settings_of
from logprobe.monitor.judging.places import places_of
from logprobe.monitor.judging.records import (
    Joins,
    Series,
    VersionConflicts,
    WeightRecord,
    Weights,
    windows,
)
from logprobe.monitor.judging.replay import Replay
from logprobe.monitor.judging.replay import from_rows as routes_from_rows
from logprobe.monitor.judging.setup import Setup, from_documents, parsed
from logprobe.monitor.judging.tokens import Tokens, from_table, replicas_of
from logprobe.monitor.judging.weight_readings import Readings, from_rows
from logprobe.monitor.metrics.lag import Versions
from logprobe.monitor.queries import Source
from logprobe.monitor.ragged import floats

SAMPLE_TOKENS: Final = 200_000  # a share of 0.1 % is then known to 7 % of itself
_READ_TOKENS: Final = 2_000_000  # raw tokens of the sampled steps, which are decoded to find the sample
_FEWEST_STEPS: Final = 8  # however many tokens they have: what differs from step to step must be seen
_ROUTED_STEPS: Final = 4  # the newest ones: replay works or does not
_ROUTED_SEQUENCES: Final = 16  # of each rank in a step
_SAMPLED: Final = 20_000  # requests
_STRATA_STEPS: Final = 400  # that are looked at one by one, besides the beginning and today
_COUNTED: Final = (
    *("sequences", "tokens", "received", "seen", "missing", "missing_tokens", "unaligned", "other_ids", "routed"),
    *("versions_compared", "versions_differing", "engine_older", "engine_newer"),
)
_STRATA: Final = {
    "sequences": "sequences",
    "tokens": "n",
    "sum_k3": "k3",
    "sum_abs_d": "abs_d",
    "c_nn": "c_nn",
    "c_aa": "c_aa",
    "c_an": "c_an",
}


_LATE: Final = timedelta(minutes=15)  # so late marks come at most while a run is judged step by step
_GROUPS: Final = ("cached", "in_flight", "replica", "version")


def gather(source: Source, run: str, *, steps: Steps = (None, None)) -> Frame:
    """Read the frame of a run in a window of steps.

    Args:
        source: a `Reader` or a `Store`.
        run: name of the run.
        steps: first and last step, both included, or None for no bound.

    Raises:
        QueryError: the read failed, see `Reader.read`.
    """
    frame = with_tokens(source, gather_sums(source, run, steps=steps))
    return frame if steps == (None, None) else replace(frame, sampled=None)  # those are the newest of the whole run


def with_tokens(source: Source, frame: Frame) -> Frame:
    """Return the frame with a sample of its raw tokens. Raises as `gather` does."""
    versions = Versions.of(map(vars, frame.weights.records))
    recorded, places, replicas = _sample(source, frame.run, frame.series, versions)
    replay = _replay(source, frame.run, frame.series) if frame.joins.routed else Replay()
    sampled = _sampled(source, frame.run) if frame.joins.seen_by_engine else None
    return replace(frame, recorded=recorded, places=places, replicas=replicas, replay=replay, sampled=sampled)


def gather_sums(source: Source, run: str, *, steps: Steps = (None, None)) -> Frame:
    """Read the frame of a run without raw tokens. Arguments and errors are those of `gather`."""
    series = series_of(source, run, *steps)
    history = series  # a run's normal is that of its beginning, wherever the window begins
    if steps[0] is not None and len(series):
        history = series_of(source, run, None, int(series.step[-1]))
    frame = Frame(
        run=run,
        series=series,
        strata=_strata(source, run, history),
        weights=weights_of_runs(source, {run: Weights()})[run],
        readings=readings_of(source, run),
        history=None if history is series else history,
    )
    return with_setup(source, with_series(source, frame, series))


def with_setup(source: Source, frame: Frame) -> Frame:
    """Return the frame with the setup of both sides, and with what depends on it: growth and levels of other runs.

    Raises as `gather` does.
    """
    run, history = frame.run, frame.series if frame.history is None else frame.history
    configs = queries.diagnosis_configs(source, run=run).to_pylist()
    setup, setups, settings = from_documents(configs), _setups(source, run, configs), settings_of(configs)
    growth = begun(setup, setups).follow(history.step.tolist(), history.k3.tolist(), setups[1:]).verdict()
    rates = queries.diagnosis_learning_rate(source, run=run) if growth.verdict in GROWS else None
    return replace(
        frame,
        setup=setup,
        setups=setups,
        growth=growth,
        settings=settings,
        remembered=remembered(source, run, settings),
        unmoved_since=None if rates is None else rates["since"][0].as_py(),
    )


def has_all_strata(frame: Frame) -> bool:
    """Return whether the strata of a frame of all steps are of each step, as those of a frame read now would be."""
    return len(frame.measured) <= _STRATA_STEPS


def with_series(source: Source, frame: Frame, series: Series) -> Frame:
    """Return the frame with sums by step, and the columns derived from them."""
    joins = joins_of(series, _on_their_way(source, frame.run, series))
    return replace(frame, series=series, joins=joins, pairs=pairs_of(series), independent=_independent(joins))


def _columns(table: pa.Table) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}


def series_of(source: Source, run: str, first: int | None = None, last: int | None = None) -> Series:
    """Return sums by step. Both ends are included, and None means no bound."""
    return Series(_columns(queries.diagnosis_steps(source, run=run, first=first, last=last)))


def _by_run(table: pa.Table, runs: Iterable[str]) -> Iterator[tuple[str, pa.Table]]:
    """Split a table that is sorted by run into the rows of each run, without that column."""
    names = table["run"].to_pylist()
    table = table.drop_columns(["run"])
    for run in runs:
        first = bisect_left(names, run)
        yield run, table.slice(first, bisect_right(names, run) - first)


def _setups(source: Source, run: str, configs: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    """Return the first step of each setup of the engines, or nothing if there is only one."""
    if sum(row["kind"] == "engine_config" for row in configs) < 2:  # noqa: PLR2004 - reading them looks at every sequence
        return ()
    rows = queries.diagnosis_config_changes(source, run=run).to_pylist()
    return tuple((row["step"], row["setup"]) for row in rows)


def growth_of(source: Source, run: str, steps: Sequence[int], values: Iterable[float | None]) -> Growth:
    """Return the verdict on K3 by the run's own past.

    Args:
        source: source of the run's configurations. Each setup of the engines has its own baseline.
        run: name of the run.
        steps: its steps from the first on, ascending.
        values: K3 of the pair `backend` at each, None or NaN if it was not measured.
    """
    configs = queries.diagnosis_configs(source, run=run).to_pylist()
    setups = _setups(source, run, configs)
    return begun(from_documents(configs), setups).follow(list(steps), list(values), setups[1:]).verdict()


def begun(setup: Setup, setups: Sequence[Change]) -> Tracker:
    """Return the growth rule at the start of a run with this setup."""
    return Tracker(band=band_of(setup), setup=setups[0][1] if setups else None)


def _strata(source: Source, run: str, series: Series) -> Strata:
    """Read sums of the run's beginning, of today, and of evenly spaced steps between."""
    measured = series.step[series["n"] > 0]
    first, now = windows(measured)
    between = measured[np.linspace(0, len(measured) - 1, min(len(measured), _STRATA_STEPS)).round().astype(np.int64)]
    return strata_of_run(source, run, np.unique(np.concatenate([first, now, between])).tolist())


def slices_of(source: Source, run: str, steps: Sequence[int]) -> pa.Table:
    """Read the rows of ``diagnosis_slices`` of some steps."""
    ends = {"lowest": min(steps, default=0), "highest": max(steps, default=-1)}
    return queries.diagnosis_slices(source, run=run, steps=list(steps), **ends)


def strata_of_run(source: Source, run: str, steps: Sequence[int]) -> Strata:
    """Read sums of some steps by replica, cache, requests in flight, lag and version."""
    table = slices_of(source, run, steps)
    numbers = {name: table[name].to_numpy().astype(np.float64) for name in _STRATA.values()}
    groups = {name: np.array(table[name].to_pylist(), np.object_) for name in _GROUPS}
    lag = table["lag"].cast(pa.float64()).fill_null(np.nan).to_numpy()
    return strata_of_slices({"step": table["step"].to_numpy().astype(np.int64), "lag": lag, **groups, **numbers})


def strata_of_slices(rows: Mapping[str, NDArray[Any]]) -> Strata:
    """Return strata from columns of ``diagnosis_slices`` [R]. An unknown lag is NaN, and an unknown group None."""
    groups = {name: Column.of(rows[name]) for name in _GROUPS}
    return Strata(
        step=rows["step"],
        lag=rows["lag"],
        groups={name: column for name, column in groups.items() if column.known.any()},
        **{ours: rows[theirs] for ours, theirs in _STRATA.items()},
    )


def pairs_of(series: Series) -> dict[str, Pair]:
    """Return K3 of the other pairs by step."""
    measured = {name: np.isfinite(series[name]) for name in ("update", "reference")}
    return {name: Pair(series.step[rows], series[name][rows]) for name, rows in measured.items() if rows.any()}


def _independent(joins: Joins) -> bool | None:
    """Return whether engines recorded their own log-probs, or None if none is joined."""
    if not joins.seen_by_engine:
        return None
    return joins.received == 0 or joins.seen_by_engine > joins.sequences / 2


def _on_their_way(source: Source, run: str, series: Series) -> Collection[int]:
    """Return the steps that may still receive records of the engine."""
    if not series.total("unseen"):
        return ()
    steps: list[int] = queries.diagnosis_steps_on_their_way(source, run=run)["step"].to_pylist()
    return steps


def joins_of(series: Series, on_their_way: Collection[int] = ()) -> Joins:
    """Return the source of r in all steps. Steps in `on_their_way` may still receive it."""
    waits = np.isin(series.step, list(on_their_way))
    unseen, unseen_tokens = (int(series[name][waits].sum()) for name in ("unseen", "unseen_tokens"))
    count = {name: int(series.total(name)) for name in _COUNTED}
    return Joins(
        sequences=count["sequences"] - unseen,
        tokens=count["tokens"] - unseen_tokens,
        missing=count["missing"] - unseen,
        missing_tokens=count["missing_tokens"] - unseen_tokens,
        unaligned=count["unaligned"],
        received=count["received"],
        seen_by_engine=count["seen"],
        other_ids=count["other_ids"],
        routed=count["routed"],
        conflicts=_conflicts(series, count),
    )


def _conflicts(series: Series, count: Mapping[str, int]) -> VersionConflicts | None:
    if not count["versions_compared"]:
        return None
    differing = series.step[series["versions_differing"] > 0]
    return VersionConflicts(
        compared=count["versions_compared"],
        differing=count["versions_differing"],
        engine_older=count["engine_older"],
        engine_newer=count["engine_newer"],
        first_step=int(differing[0]) if len(differing) else None,
    )


def readings_of(source: Source, run: str) -> Readings:
    """Read the fingerprints of weights of a run."""
    rows = queries.diagnosis_weight_readings(source, run=run).to_pylist()
    if not rows:
        return Readings()
    layouts = queries.config_documents(source, run=run, kind="weight_layout").to_pylist()
    return from_rows(rows, {row["fingerprint"]: tuple(parsed(row["document"]).get("tensors", ())) for row in layouts})


def weights_of_runs(source: Source, known: Mapping[str, Weights]) -> dict[str, Weights]:
    """Return the weight versions of several runs.

    Known records are kept except the newest, which late marks may have changed. These and new records are read.
    """
    before = {run: _settled(weights.records) for run, weights in known.items()}
    after = [records[-1].time if records else None for records in before.values()]
    table = queries.diagnosis_weights(source, runs=list(known), after=after)
    news = {run: tuple(WeightRecord(**row) for row in rows.to_pylist()) for run, rows in _by_run(table, known)}
    found = {run: (*records, *news[run]) for run, records in before.items()}
    # The same object without news: it keeps what was made of its records.
    return {run: weights if weights.records == found[run] else Weights(found[run]) for run, weights in known.items()}


def _settled(records: tuple[WeightRecord, ...]) -> tuple[WeightRecord, ...]:
    """Return the records that are old enough for no late mark to change them."""
    if not records or (last := records[-1].time) is None:
        return ()
    return tuple(record for record in records if record.time is not None and record.time <= last - _LATE)


def _sample(
    source: Source, run: str, series: Series, versions: Versions
) -> tuple[Tokens | None, tuple[Placed, ...], tuple[str, ...]]:
    """Read about `SAMPLE_TOKENS` tokens at most, spread evenly over the steps, with their places and replicas."""
    steps, parts = _plan(series)
    if not steps:
        return None, (), ()
    table = queries.diagnosis_tokens(source, run=run, steps=steps, parts=parts)
    if not table.num_rows:
        return None, (), ()
    recorded = from_table(table, versions)
    return recorded, places_of(table, recorded), replicas_of(table)


def _replay(source: Source, run: str, series: Series) -> Replay:
    """Return the routes of some sequences of the newest steps."""
    steps = series.step[-_ROUTED_STEPS:].tolist()
    return routes_from_rows(queries.diagnosis_routes(source, run=run, steps=steps, each=_ROUTED_SEQUENCES).to_pylist())


def _sampled(source: Source, run: str) -> Sampled | None:
    """Return the newest requests of the engines, or None without any."""
    table = queries.diagnosis_sampled(source, run=run, most=_SAMPLED)
    if not table.num_rows:
        return None
    numbers = ("time", "entropy", "reward", "first", "last", "trained_at")
    prompts: dict[str | int, int] = {}
    return Sampled(
        **{name: floats(table[name].cast(pa.float64())) for name in numbers},
        tokens=floats(table["n_tokens"].cast(pa.float64())),
        prompt=np.array([prompts.setdefault(p or at, at) for at, p in enumerate(table["prompt"].to_pylist())], np.intp),
        until=table["until"][0].as_py(),
        missing=table["missing"][0].as_py(),
    )


def _plan(series: Series) -> tuple[list[int], int]:
    """Return the steps to sample, and the number of parts of their sequences. One part is read."""
    tokens = series["n_expected"]
    if not len(series) or not tokens.sum():
        return [], 1
    affordable = max(_FEWEST_STEPS, int(_READ_TOKENS / max(tokens.mean(), 1)))
    chosen = np.unique(np.linspace(0, len(series) - 1, min(affordable, len(series))).round().astype(np.int64))
    parts = max(1, round(float(tokens[chosen].sum()) / SAMPLE_TOKENS))
    return series.step[chosen].tolist(), parts
