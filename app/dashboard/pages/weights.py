"""Weights: how old the weights were that sampled, when new ones arrived where, and what updates did to requests in
flight."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from logprobe.app.dashboard.charts.panels import Line, Panel
from logprobe.app.dashboard.charts.points import lanes_chart, points_chart
from logprobe.app.dashboard.charts.steps_chart import Key
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import CatalogSeries, RunSeries
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.data.visible import Visible, visible
from logprobe.app.dashboard.elements.blocks import Block, heading, row, table, text
from logprobe.app.dashboard.pages import weights_study as study
from logprobe.app.dashboard.views.chart import steps_chart
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, theme
from logprobe.app.runs import Run
from logprobe.app.text.numbers import counted, number
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.analysis.weight_updates import Arrival, Lane, ReplicaLag, lag_by_replica, lanes
from logprobe.monitor.event_study import around_updates, by_cached_prefix, contrasts

_LANES: Final = 24  # drawn; the table has all
_REPLICAS: Final = 5  # beside the whole: as many as colours tell apart
_NEWEST: Final = 10  # steps that say how old the weights are now
_GREW: Final = 2.0  # times the usual lag; more is unusual
_HEAD: Final = ("lane", "newest version", "updates", "to arrive", "pause", "prefix cache", "unusual")
_TONES: Final = {"current": "", "behind": "warning", "stopped": "critical", "unknown": "warning"}

PANELS: Final = (
    Panel((Line("weight_lag_mean", "neutral", "mean"), Line("weight_lag_max", "neutral", "max", "dot")), "Weight lag", from_zero=True),
    Panel((Line("weight_lag_steps_mean", "neutral", "mean"), Line("weight_lag_steps_max", "neutral", "max", "dot")), "Weight lag in steps", from_zero=True),
    Panel((Line("weight_lag_seconds_mean", "neutral", "mean"), Line("weight_lag_seconds_max", "neutral", "max", "dot")), "Weight lag in seconds", from_zero=True),
    Panel((Line("mixed_version_frac", "neutral", "mixed"), Line("unknown_version_frac", "backend", "unknown", "dot")), "Mixed versions", from_zero=True),
    Panel((Line("publish_delay_seconds_mean", "neutral", "mean"), Line("publish_delay_seconds_max", "neutral", "max", "dot")), "Publish delay", "auto"),
    Panel((Line("update_pause_seconds_mean", "neutral", "mean"), Line("update_pause_seconds_max", "neutral", "max", "dot")), "Pause for an update", "auto"),
    Panel((Line("publish_replicas", "neutral", "replicas"),), "Updated", from_zero=True),
)  # fmt: skip
METRICS: Final = tuple(line.metric for panel in PANELS for line in panel.lines)


def with_replicas(
    series: RunSeries, lags: Sequence[ReplicaLag]
) -> tuple[tuple[Panel, ...], list[RunSeries], list[Key]]:
    """The panels, the trends beside the run's own and the legend; those replicas whose lag is largest, where there are
    several."""
    if len(lags) < 2:  # noqa: PLR2004 -- one replica is the run itself
        return PANELS, [], []
    worst = sorted(lags, key=_mean_lag, reverse=True)[:_REPLICAS]
    beside = [_beside(series, lag) for lag in worst]
    lines = tuple(Line("weight_lag_mean", f"run {at}", name_of(lag), run=at) for at, lag in enumerate(worst, start=1))
    keys = [Key(name_of(lag), f"run {at}", help="mean lag of its tokens") for at, lag in enumerate(worst, start=1)]
    first = replace(PANELS[0], lines=PANELS[0].lines + lines, height=110)
    return (first, *PANELS[1:]), beside, keys


def _mean_lag(lag: ReplicaLag) -> float:
    """Over its steps; a lag that is unknown is none to stand out."""
    measured = lag.mean[np.isfinite(lag.mean)]
    return float(measured.mean()) if len(measured) else 0.0


def _beside(series: RunSeries, lag: ReplicaLag) -> RunSeries:
    """The lag of a replica at the steps of the run."""
    column = np.full(len(series.steps), np.nan)
    shared = np.isin(lag.steps, series.steps)
    column[np.searchsorted(series.steps, lag.steps[shared])] = lag.mean[shared]
    return replace(series, run=name_of(lag), values={"weight_lag_mean": column})


def name_of(lane: Lane | ReplicaLag) -> str:
    """As people call it."""
    if isinstance(lane, Lane) and lane.source != "engine":
        return "trainer"
    return "engine" if lane.replica is None else f"engine {harmless(lane.replica)}"


@dataclass(frozen=True)
class Age:
    """How many versions old the weights were that sampled the tokens trained on.

    Attributes:
        steps: how many of the newest measured steps are looked at.
        oldest: median over them of a step's largest lag.
        mean: of its mean lag.
        usual: median of the largest lag over all steps before; None: too few.
    """

    steps: int
    oldest: float
    mean: float
    usual: float | None

    @property
    def grew(self) -> bool:
        """Whether it is clearly above what is usual: more than double, and more than one version."""
        return self.usual is not None and self.oldest > max(_GREW * self.usual, self.usual + 1)

    @property
    def words(self) -> str:
        """What it is, and what is usual where it grew."""
        before = f"; usual in this run: up to {number(self.usual)}" if self.grew else ""
        plural = "" if self.oldest == 1 else "s"
        return f"up to {number(self.oldest)} version{plural} old, {number(self.mean)} on average{before}"


def age_of(series: RunSeries) -> Age | None:
    """As of the newest steps; None: no step has a lag."""
    columns = [series.column(f"weight_lag_{name}") for name in ("max", "mean")]
    usable = np.isfinite(columns[0]) & np.isfinite(columns[1])
    largest, mean = (column[usable] for column in columns)
    if not largest.size:
        return None
    now, before = largest[-_NEWEST:], largest[:-_NEWEST]
    usual = float(np.median(before)) if before.size >= _NEWEST else None
    return Age(now.size, float(np.median(now)), float(np.median(mean[-_NEWEST:])), usual)


def status_lines(lanes: Sequence[Lane], age: Age | None = None) -> list[Block]:
    """Whether all engines keep up, and how old the weights were that sampled what is trained on; what to record where
    it is unknown."""
    return [*_arriving(lanes), *([] if age is None else [_aged(age)])]


def _aged(age: Age) -> Block:
    steps = f"the newest {age.steps:,} steps" if age.steps > 1 else "the newest step"
    sentence = (
        f"The tokens trained on in {steps} were sampled by "
        f"{f'weights {age.words}' if age.oldest else 'the newest weights'}."
    )
    waits = " The lag grew: batches wait between engine and trainer; bound how many." if age.grew else ""
    return text(f"{sentence}{waits}", "warning" if age.grew else "")


def _arriving(lanes: Sequence[Lane]) -> list[Block]:
    """Whether all engines keep up, in one line."""
    engines = [lane for lane in lanes if lane.source == "engine"]
    late = [lane for lane in engines if lane.state != "current"]
    if not lanes:
        return [
            text(
                "No weight update was recorded: call `logprobe.collectors.weights.mark(version)` when the engines have "
                "loaded new weights.",
                "unknown",
            )
        ]
    if not engines:
        return [
            text(
                "Only the trainer has recorded updates, no engine: set up the vLLM plugin to see when weights arrive.",
                "unknown",
            )
        ]
    if not late:
        return [text(f"{_engines(len(engines))} up with the newest weights, version `{harmless(_newest(lanes))}`.")]
    words = "; ".join(_late(lane) for lane in late)
    return [text(f"{len(late)} of {counted(len(engines), 'engine')}: {words}.", _worst(late))]


def _engines(count: int) -> str:
    return "The engine keeps" if count == 1 else f"{'Both' if count == 2 else f'All {count:,}'} engines keep"  # noqa: PLR2004


def _newest(lanes: Sequence[Lane]) -> str:
    return next(lane.newest_version or "" for lane in lanes if lane.behind == 0)


def _late(lane: Lane) -> str:
    if lane.behind is None or lane.newest_version is None:
        return (
            f"{name_of(lane)} never reported its weight version: call `logprobe.collectors.weights.mark(version)` "
            "after the load"
        )
    state = "stopped updating" if lane.state == "stopped" else "lags behind"
    return (
        f"{name_of(lane)} {state} at version `{harmless(lane.newest_version)}`, {counted(lane.behind, 'version')} "
        "behind"
    )


def _worst(lanes: Sequence[Lane]) -> str:
    return "critical" if any(lane.state == "stopped" for lane in lanes) else "warning"


def timeline(lanes: Sequence[Lane], shown: str) -> dict[str, object]:
    """What `charts/points.py` draws: a lane per engine, the trainer first, then those that are worst off. `shown`: of
    which arrivals."""
    drawn = sorted(lanes, key=_place)[:_LANES]
    times = [arrival.arrived_at.timestamp() for lane in drawn for arrival in lane.arrivals if arrival.arrived_at]
    hidden = len(lanes) - len(drawn)
    return {
        "lanes": [_drawn(lane) for lane in drawn],
        "from": min(times, default=None),
        "to": max(times, default=None),
        "hint": shown + (f"; {counted(hidden, 'lane')} more in the table" if hidden else ""),
        "alt": " ".join(_in_words(lane) for lane in drawn),
    }


def _place(lane: Lane) -> tuple[bool, float, str]:
    """The trainer first, then the engines that are furthest behind; what is unknown is the furthest."""
    return lane.source == "engine", -math.inf if lane.behind is None else -lane.behind, lane.replica or ""


def _drawn(lane: Lane) -> dict[str, object]:
    late = lane.state != "current"
    return {
        "name": name_of(lane),
        "engine": lane.source == "engine",
        "tone": _TONES[lane.state] if lane.source == "engine" else "",
        "note": _note(lane) if late and lane.source == "engine" else "",
        "gone": lane.state in {"behind", "stopped"} and lane.source == "engine",
        "arrivals": [_arrival(arrival) for arrival in lane.arrivals if arrival.arrived_at is not None],
    }


def _note(lane: Lane) -> str:
    return "version unknown" if lane.behind is None else f"{lane.behind:,} behind"


def _arrival(arrival: Arrival) -> dict[str, object]:
    """Only what there is: most of it is null for most records."""
    values = {
        "at": None if arrival.arrived_at is None else round(arrival.arrived_at.timestamp(), 6),
        "version": harmless(arrival.version),
        "step": arrival.step,
        "delay": arrival.delay,
        "pause": arrival.pause,
        "mode": arrival.pause_mode,
        "kept": None if arrival.cache_cleared is None else not arrival.cache_cleared,
        "loaded": arrival.loaded or None,
        "skipped": arrival.skipped or None,
        "backwards": arrival.backwards or None,
        "reloads": arrival.reloads or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _in_words(lane: Lane) -> str:
    return (
        f"{name_of(lane)}: {counted(lane.updates, 'update')}, newest version {harmless(lane.newest_version or '–')}, "
        f"{_note(lane)}."
    )


def lanes_blocks(lanes: Sequence[Lane], age: Age | None = None) -> list[Block]:
    """The lanes as a table, of the whole run; those in trouble first among the engines. `age`: of what the trainer
    trains on."""
    ordered = sorted(lanes, key=_place)
    rows = [_lane(lane, age) for lane in ordered]
    return [table("lanes", _HEAD, rows, empty="No weight updates recorded.")]


def _lane(lane: Lane, age: Age | None) -> Block:
    engine = lane.source == "engine"
    late = age is not None and age.grew and not engine
    odd = [*_odd(lane), *([f"trains on tokens of weights {age.words}"] if late and age is not None else [])]
    cells = [
        name_of(lane),
        harmless(lane.newest_version or "unknown") + (f", {lane.behind:,} behind" if lane.behind else ""),
        f"{lane.updates:,}" + (f", every {lane.usual_stride:,} versions" if lane.usual_stride > 1 else ""),
        _range(lane.usual_delay, lane.longest_delay),
        _pause(lane),
        _cache(lane) if engine else "–",
        "; ".join(odd) or "nothing",
    ]
    return row(cells, tone=(_TONES[lane.state] or ("warning" if odd else "")) if engine else "warning" if late else "")


def _range(usual: float | None, longest: float | None) -> str:
    return "–" if usual is None else f"{number(usual)} s, at most {number(longest)} s"


def _pause(lane: Lane) -> str:
    modes = ", ".join(harmless(mode) for mode in lane.pauses or ())
    if lane.usual_pause is None:
        return f"mode {modes}; duration unknown" if modes else "none seen" if lane.source == "engine" else "–"
    return f"{_range(lane.usual_pause, lane.longest_pause)}{f', mode {modes}' if modes else ''}"


def _cache(lane: Lane) -> str:
    counts = [f"kept {lane.kept:,}×" if lane.kept else "", f"cleared {lane.cleared:,}×" if lane.cleared else ""]
    return ", ".join(filter(None, counts)) or "unknown"


def _odd(lane: Lane) -> Iterator[str]:
    if lane.source == "engine" and lane.state in {"behind", "stopped"}:
        yield "stopped updating" if lane.state == "stopped" else "lags behind"
    if lane.all_skipped:
        yield f"{counted(lane.all_skipped, 'version')} skipped"
    if lane.all_backwards:
        yield f"{counted(lane.all_backwards, 'update')} to an older version"
    if lane.all_unloaded and lane.source == "engine":
        yield f"{counted(lane.all_unloaded, 'version')} announced but never loaded"
    if lane.unknown:
        yield f"{counted(lane.unknown, 'update')} without a version: call weights.mark after the load"
    if lane.all_reloads and lane.source == "engine":
        yield f"{counted(lane.all_reloads, 'reload')} of the same version"


def versions_blocks(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The sequences that no single version sampled, in words, shown next to the points."""
    parts = [_rest(group) for group in rows if group["version"] is None and group["sequences"]]
    return [text("; ".join(parts) + ".")] if parts else []


def _rest(group: Mapping[str, Any]) -> str:
    sampled = "of several versions" if group["mixed"] else "of unknown version"
    return f"{counted(group['sequences'], 'sequence')} {sampled}: K3 {number(group['k3_kl'])}"


def title(words: str, note: str) -> list[Block]:
    """The heading of a section whose panel has none."""
    return [heading(words, note)]


T = TypeVar("T")

_VERSIONS: Final = 120  # newest ones on the timeline while nobody asks for others
_STEPS: Final = 1000  # newest ones that are looked at sequence by sequence
_TOKENS: Final = 2_000_000  # of the newest steps that are looked at token by token


@dataclass(frozen=True)
class _Looking:
    """What is looked at: of which run, which steps are in view, and of these those few enough for sequences and for
    tokens."""

    run: Run
    view: RunView
    seen: Visible
    sequences: Visible
    tokens: Visible

    def once(self, name: str, steps: Visible, read: Callable[[], T]) -> T | None:
        """What `read` returns for these steps, as it was last worth computing; the last that is known while the service
        is away."""
        key: Hashable = (
            self.run.name,
            name,
            steps.first if not self.seen.whole else None,
            steps.last if not self.seen.whole else None,
        )
        state = (self.view.series.revision, steps)
        return kept(f"weights {key}", lambda: _shared_cache(str(home())).get(key, state, read).value)


@cache
def _series(_home: str) -> CatalogSeries:
    return CatalogSeries(feed(), METRICS)


@cache
def _shared_cache(_home: str) -> StaleCache:
    return StaleCache()


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    seen = visible(asked("steps"), view.series.steps)
    at = _Looking(
        run, view, seen, _newest_steps(view, seen, sequences=True), _newest_steps(view, seen, sequences=False)
    )
    sections = (("timeline", _timeline), ("lag", _lag), ("event study", _study), ("weight versions", _by_version))
    for name, section in sections:
        with guarded(name):
            section(at)


def _newest_steps(view: RunView, seen: Visible, *, sequences: bool) -> Visible:
    """The newest of the steps in view: so many, or with about so many tokens."""
    steps, tokens = view.series.steps, view.series.tokens
    inside = np.flatnonzero((steps >= seen.first) & (steps <= seen.last))
    if sequences:
        chosen = inside[-_STEPS:]
    else:
        counted = np.cumsum(np.nan_to_num(tokens[inside])[::-1])[::-1]
        chosen = inside[(counted <= _TOKENS) | (inside == inside[-1])]
    return Visible(int(steps[chosen[0]]), int(steps[chosen[-1]]), whole=seen.whole and len(chosen) == len(steps))


def _blocks(key: str, blocks: Sequence[Block]) -> None:
    report(f"weights {key}", key, blocks)


def _points(key: str, run: Run, data: Mapping[str, Any]) -> None:
    """Points with their errors, or why there are none."""
    title_ = heading(data["title"], data["hint"])
    if not data["points"]:
        report(f"weights {key}", data["title"], [title_, text(data["empty"])])
        return
    chart = points_chart(data, run.name, theme())
    report(f"weights {key}", data["title"], [{"type": "figure", "heading": title_, "chart": chart}])


def _timeline(at: _Looking) -> None:
    newest = _VERSIONS if at.seen.whole else None
    steps = (None, None) if at.seen.whole else (at.seen.first, at.seen.last)
    replica_lanes: tuple[Lane, ...] | None = at.once(
        "lanes", at.seen, lambda: lanes(feed(), at.run.name, steps=steps, newest=newest)
    )
    if replica_lanes is None:
        return
    shown = (
        f"the newest {_VERSIONS} versions; zoom into the chart for others"
        if at.seen.whole
        else f"versions of {at.seen.words}"
    )
    series = _with_lag(at)
    age = None if series is None else age_of(series)
    _blocks("status", status_lines(replica_lanes, age))
    if replica_lanes:
        drawn = timeline(replica_lanes, shown)
        chart = lanes_chart(drawn, at.run.name, theme())
        shown_lanes: Block = {"type": "figure", "heading": heading("Updates", str(drawn["hint"])), "chart": chart}
        report("weights timeline", "timeline", [shown_lanes])
        _blocks("lanes", lanes_blocks(replica_lanes, age))


def _with_lag(at: _Looking) -> RunSeries | None:
    """The run with the metrics of this page; the last that is known while the service is away."""
    run, revision = at.run.name, at.view.series.revision
    return kept(f"weights series {run}", lambda: _series(str(home())).of(run, revision))


def _lag(at: _Looking) -> None:
    run, series = at.run.name, _with_lag(at)
    if series is None:
        return
    window = (at.sequences.first, at.sequences.last)
    lags: list[ReplicaLag] | None = at.once("replicas", at.sequences, lambda: lag_by_replica(feed(), run, window))
    panels, beside, keys = with_replicas(series, lags or ())
    _blocks("lag title", title("Lag and delay", _lag_note(at, len(beside), len(lags or ()))))
    steps_chart(
        "weights", replace(at.view, series=series), panels, beside=[RunView(replica) for replica in beside], legend=keys
    )


def _lag_note(at: _Looking, engines: int, replicas: int) -> str:
    note = "age of the weights that sampled, and how long new ones took to arrive"
    note += f"; the {engines} of {replicas:,} replicas that lag most" if engines < replicas > 1 else ""
    return f"{note}; engines apart: {at.sequences.words}" if engines and at.sequences != at.seen else note


def _study(at: _Looking) -> None:
    run, few, many = at.run.name, at.tokens, at.sequences
    switches = at.once("switches", few, lambda: around_updates(feed(), run, steps=(few.first, few.last)).to_pylist())
    cached = at.once("cached", many, lambda: by_cached_prefix(feed(), run, steps=(many.first, many.last)).to_pylist())
    if switches is None or cached is None:
        return
    _points("switches", at.run, study.switch_points(switches, few.words))
    _blocks("patterns", [*study.contrasts_blocks(contrasts(switches, cached)), *study.cached_blocks(cached)])


def _by_version(at: _Looking) -> None:
    steps = at.sequences
    rows = at.once(
        "versions",
        steps,
        lambda: queries.app_weights_versions(feed(), run=at.run.name, first=steps.first, last=steps.last).to_pylist(),
    )
    if rows is not None:
        _points("versions", at.run, study.version_points(rows, steps.words))
        _blocks("rest", versions_blocks(rows))
