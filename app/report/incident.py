"""The incident report of one run: what is wrong, since which step, in which layer, what to do and was done, and what that stands on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.report.chart import Chart, Line, figure, legend
from logprobe.app.report.html import Markup, badge, element, listing, page, section, table
from logprobe.app.text import tables
from logprobe.app.text.correction import OFF, advised, remedy, settings, unnamed
from logprobe.app.text.diagnosis import (
    ADVICE,
    HEAD,
    LAYERS,
    arm_cells,
    evidence_name,
    extent,
    headline,
    qualities,
    share,
)
from logprobe.app.text.numbers import counted, duration, when
from logprobe.monitor.compare.history import History
from logprobe.monitor.diagnosis import Diagnosis
from logprobe.monitor.diagnosis.culprit import Picture
from logprobe.monitor.diagnosis.expected import expected
from logprobe.monitor.diagnosis.growth.rule import K3, RULE
from logprobe.monitor.diagnosis.leading import in_reading_order, leading
from logprobe.monitor.diagnosis.named import in_words
from logprobe.monitor.metrics.catalog import metric as declared

BEFORE: Final = 50  # steps before the onset in which changes are looked for
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_FIRING: Final = frozenset({"firing", "recovering"})
Rows = Sequence[Mapping[str, Any]]


def summary(found: Diagnosis, history: History, *, current: Rows, actions: Rows, standing: Standing = OFF) -> Markup:
    """Names and values beside K3 over time. `current`: alerts as they are now; `actions`: of the correction, newest first."""
    pairs = [
        ("since", _since(found, history)),
        ("how much", _extent(found, history)),
        ("layer", LAYERS[found.layer]),
        ("what to do", _remedy(found, standing)),
        ("setting", _setting(found, standing)),
        ("correction", _correction(found, standing)),
        ("done about it", _done(actions)),
        ("alerts", _alerts(current)),
        ("stands on", _span(history)),
    ]
    facts = [part for name, words in pairs if words for part in (element("dt", name), element("dd", words))]
    return element("div", element("dl", *facts), figure(_trend(found, history)), class_="first")


def _since(found: Diagnosis, history: History) -> str:
    since = found.since_step
    if since is None:
        return ""
    first = ", its first step" if history.steps and since <= history.steps[0] else ""
    seconds = history.seconds.get(since)
    after = f", {duration(seconds)} after the first" if seconds and not first else ""
    at = history.at(since)
    return f"step {since:,}{first}{after}{'' if at is None else f', {when(at)} UTC'}"


def _extent(found: Diagnosis, history: History) -> str:
    words = extent(found.document(), history.growth)
    doubling = history.growth.doubling_steps
    pace = "" if doubling is None else f"; it doubles every {doubling:.0f} steps"
    return words and f"K3 is {words}{pace}"


def _correction(found: Diagnosis, standing: Standing) -> str:
    return advised(found.document(), standing) or f"{ADVICE[found.correction.advice]}: {found.correction.why}"


def _remedy(found: Diagnosis, standing: Standing) -> str:
    first = leading(found.document())
    if first is not None:
        part = share(first)
        return f"{first['cause'].replace('_', ' ')}{part and f' ({part})'}: {remedy(first, standing)}"
    if found.verdict in {"growing", "critical"}:
        return "no credible cause found: see what is not measured"
    return "nothing" if found.verdict == "healthy" else ""


def _setting(found: Diagnosis, standing: Standing) -> str:
    """What the remedy is called in the run's framework."""
    document = found.document()
    first = leading(document)
    if first is None:
        return ""
    return "; ".join(in_words(setting) for setting in settings(first, standing)) or unnamed(first, document)


def _done(actions: Rows) -> str:
    if not actions:
        return "nothing switched, suggested or refused"
    newest = actions[0]
    at = "" if newest["step"] is None else f" at step {newest['step']:,}"
    return f"{newest['name'].replace('_', ' ')}{at}: {newest['words']}"


def _alerts(current: Rows) -> str:
    names = dict.fromkeys(row["rule"] for row in current if row["phase"] in _FIRING)
    return ", ".join(f"{name} fires" for name in names) or "none fires"


def _span(history: History) -> str:
    if not history.steps:
        return "no steps"
    tokens = max(history.tokens.values())
    return f"{len(history.steps):,} steps, {history.steps[0]:,} to {history.steps[-1]:,}; {tokens:,.0f} trained tokens"


def _trend(found: Diagnosis, history: History) -> Chart:
    """K3 with the band that is no growth, and the step of onset."""
    points = [(float(step), value) for step, value in sorted(history.trend(K3).items())]
    base, within, since = history.growth.baseline, RULE.growing.short_ratio, found.since_step
    band = (
        [] if base is None or not points else [(x, base / within, base * within) for x in (points[0][0], points[-1][0])]
    )
    mark = None if since is None else (float(since), f"since step {since}")
    alt = f"K3 over {len(points):,} steps" + ("" if since is None else f"; onset at step {since}")
    return Chart(
        "K3 and the band of its baseline", alt, [Line(history.label, points)], unit="nats", band=band, mark=mark
    )


def timeline(found: Diagnosis, history: History, *, alerts: Rows, actions: Rows, deeds: Rows = ()) -> Markup:
    """What happened, in the order of time; what is known by its step alone stands by that step's time."""
    events = sorted(
        _events(found, history, alerts, actions, deeds), key=lambda event: (event[0] is None, event[0] or _NEVER)
    )
    if not events:
        return element("p", "No alerts fired, and no correction was switched.")
    rows = [(when(time), *rest) for time, *rest in events]
    return table("Onset, alerts, corrections, and what people did", ["UTC", "step", "what", "words"], rows)


def _events(
    found: Diagnosis, history: History, alerts: Rows, actions: Rows, deeds: Rows
) -> Iterator[tuple[datetime | None, int | None, str, str | None]]:
    if found.since_step is not None:
        yield history.at(found.since_step), found.since_step, "onset", "as dated by the diagnosis"
    for row in reversed(alerts):
        fired, was = row["after"] in _FIRING, row["before"] in _FIRING
        if fired != was:
            yield row["time"], row["step"], f"alert {row['rule']} {'fires' if fired else 'ends'}", row["words"]
    for row in reversed(actions):
        yield row["time"], row["step"], f"correction {row['name'].replace('_', ' ')}", row["words"]
    for row in deeds:
        yield row["time"], None, f"{row['action']}: {row['subject']}", f"{row['author']}: {row['words']}"


def changes(found: Diagnosis, history: History, events: Rows) -> Iterator[Markup]:
    """What changed in the steps before the onset: configurations, restarts, and weights that arrived in an unusual way."""
    since = found.since_step
    if since is None:
        yield element("p", "No onset, so there is nothing before it.")
        return
    before = [row for row in events if row["step"] is not None and since - BEFORE <= row["step"] <= since]
    rows = [(when(row["happened_at"]), row["step"], *_change(row)) for row in before if row["kind"] != "weights"]
    updates = [row for row in before if row["kind"] == "weights"]
    if rows:
        yield table(f"Steps {max(since - BEFORE, 0):,} to {since:,}", ["UTC", "step", "what", "of"], rows)
    else:
        yield element(
            "p", f"No configuration change and no restart was recorded in the {BEFORE} steps before step {since:,}."
        )
    yield element("p", _updates(updates))
    before_it = [step for step in history.steps if step < since]
    last = f"The last step before the onset is {before_it[-1]:,}" if before_it else "There is no step before the onset"
    yield element("p", f"{last}; checkpoints are not recorded, so the last good one is unknown.")


def _change(row: Mapping[str, Any]) -> tuple[str, str]:
    return {"config": "configuration changed", "restart": "collector restarted"}.get(row["kind"], row["kind"]), row[
        "label"
    ]


def _updates(updates: Rows) -> str:
    if not updates:
        return "No weight updates were recorded in these steps."
    kept = sum(row["cache_cleared"] is False for row in updates)
    modes = ", ".join(sorted({str(row["pause_mode"]) for row in updates if row["pause_mode"]})) or "not recorded"
    return f"{counted(len(updates), 'weight update')}, {kept:,} of which left the prefix cache as it was; pause mode: {modes}."


def listed(rows: Rows, columns: Mapping[str, str], caption: str, most: int) -> Markup:
    """The newest rows, or the words that there are none."""
    if not rows:
        return element("p", "None recorded.")
    shown = [[row[column] for column in columns] for row in rows[:most]]
    more = f" ({len(rows) - most} more are not shown)" if len(rows) > most else ""
    return table(caption + more, list(columns.values()), shown)


CHARTS: Final = (
    "backend.k3_kl", "backend.ratio_mean", "backend.ess", "backend.logprob_abs_diff_mean", "total.clamp_log_ratio_new_old_indicator",
    "weight_lag_mean", "token_mismatch_frac", "backend.coverage", "entropy", "reward",
)  # fmt: skip
_TONES: Final = {"healthy": "good", "growing": "bad", "critical": "bad", "calibrating": "unsure", "no_data": "unsure"}
_NEWEST: Final = 50  # rows of alerts, actions and updates


@dataclass(frozen=True)
class Incident:
    """What is reported. `headline`: the verdict in a sentence; rows are those of the stored queries.

    `current`: alerts as they are now; the others newest first. `sequences`: the worst of one step; `step`: which one, None: none was
    measured. `experiment`: the newest bisection; None: there is none. `standing`: of the correction. `deeds`: what people did about its
    alerts; `events`: updates, changed configurations and restarts; `proof`: the picture of the finding that leads.
    """

    diagnosis: Diagnosis
    headline: str
    history: History
    current: Sequence[Mapping[str, Any]] = ()
    alerts: Sequence[Mapping[str, Any]] = ()
    actions: Sequence[Mapping[str, Any]] = ()
    weights: Sequence[Mapping[str, Any]] = ()
    sequences: Sequence[Mapping[str, Any]] = ()
    step: int | None = None
    experiment: Mapping[str, Any] | None = None
    standing: Standing = OFF
    deeds: Sequence[Mapping[str, Any]] = ()
    events: Sequence[Mapping[str, Any]] = ()
    proof: Picture | None = None


def report(incident: Incident) -> str:
    """The whole document."""
    found, label = incident.diagnosis, incident.history.label
    return page(
        f"Incident report: {label}",
        badge(found.verdict.replace("_", " "), _TONES[found.verdict]),
        element("h1", incident.headline),
        summary(
            found, incident.history, current=incident.current, actions=incident.actions, standing=incident.standing
        ),
        *_proof(incident),
        section(
            "What happened",
            timeline(found, incident.history, alerts=incident.alerts, actions=incident.actions, deeds=incident.deeds),
        ),
        section(f"What changed in the {BEFORE} steps before", *changes(found, incident.history, incident.events)),
        section("Findings", *_findings(found, incident.standing)),
        *_experiment(incident.experiment),
        section("Not measured", *_not_measured(found)),
        section("Trend", element("div", *_charts(incident), class_="charts")),
        section("Worst sequences", listed(incident.sequences, _SEQUENCES, _worst(incident.step), _NEWEST)),
        section("Records", *_records(incident)),
        section("Configuration", *_configuration(incident.history)),
    )


_ALERTS: Final = {
    "time": "UTC",
    "step": "step",
    "rule": "rule",
    "severity": "severity",
    "after": "became",
    "words": "words",
}
_ACTIONS: Final = {"time": "UTC", "step": "step", "name": "action", "reason": "reason", "words": "words"}
_WEIGHTS: Final = {
    "version": "version", "step": "step", "source": "source", "replica": "replica", "pause_mode": "pause mode",
    "cache_cleared": "cache cleared",
}  # fmt: skip
_SEQUENCES: Final = {
    "sample_id": "sample", "tokens": "tokens", "broken": "broken", "k3_kl": "K3", "share": "share of the step's K3",
    "log_ratio_min": "smallest log ρ", "log_ratio_max": "largest log ρ", "reward": "reward", "replica": "replica",
    "cached_prefix_tokens": "cached prefix", "finish_reason": "finish reason",
}  # fmt: skip


def _worst(step: int | None) -> str:
    return (
        "No step was measured"
        if step is None
        else f"Of step {step}, where K3 was largest; broken tokens first, then by K3"
    )


def _findings(found: Diagnosis, standing: Standing) -> Iterator[Markup]:
    """The leading one first."""
    if not found.findings:
        yield element("p", "No cause was found.")
    for finding in in_reading_order(found.document()):
        since = "" if finding["since_step"] is None else f", since step {finding['since_step']}"
        name, layer = finding["cause"].replace("_", " "), finding["layer"].replace("_", " ")
        stated = "".join(f"; {words}" for words in qualities(finding, found.document()))
        yield element("h3", f"{name} ({layer}, {finding['confidence']:.0%} sure{since}{stated})")
        yield element("p", finding["explanation"])
        yield element("p", element("strong", "Fix: "), remedy(finding, standing))
        evidence = [_evidence(test, value) for test, value in finding["evidence"].items()]
        yield table(f"Evidence for {name}", ["test", "value", "expected", "verdict"], evidence)


def _proof(incident: Incident) -> Iterator[Markup]:
    """K3 of the tokens concerned beside the others; no section where there is no such picture."""
    if (proof := incident.proof) is not None and len(proof.lines) > 1:
        lines = [
            Line(name, [(float(step), value) for step, value in points if value is not None], at, gaps=False)
            for at, (name, points) in enumerate(proof.lines.items())
        ]
        mark = None if proof.since is None else (float(proof.since), f"since step {proof.since}")
        colours = {line.label: at for at, line in enumerate(lines)}
        yield section(
            "Culprit",
            legend(colours),
            element("div", figure(Chart("K3 by step", proof.words, lines, unit="nats", mark=mark)), class_="charts"),
        )


def _evidence(name: str, value: Any) -> list[Any]:
    """A number, and what it should be where that can be said of it alone."""
    should = expected(name)
    held = (
        ("", "")
        if should is None
        else (should.words, {True: "as expected", False: "off", None: None}[should.holds(value)])
    )
    return [evidence_name(name), value, *held]


def _experiment(document: Mapping[str, Any] | None) -> Iterator[Markup]:
    """The newest bisection; no section where there is none."""
    if document is not None:
        rows = [arm_cells(arm) for arm in document["arms"]]
        arms = [table("Arms, by the share of K3 that they remove", list(HEAD), rows)] if rows else []
        yield section("Proof by experiment", element("p", headline(document)), *arms)


def _not_measured(found: Diagnosis) -> Iterator[Markup]:
    if not found.not_measured:
        yield element("p", "All inputs of the diagnosis were measured.")
        return
    yield listing(f"{item.what}: {item.why}; to measure it, {item.how}" for item in found.not_measured)


def _charts(incident: Incident) -> Iterator[Markup]:
    since = incident.diagnosis.since_step
    mark = None if since is None else (float(since), f"since step {since}")
    for key in CHARTS:
        metric, points = declared(key), sorted(incident.history.trend(key).items())
        pair, dot, _ = key.partition(".")
        title = f"{metric.label} ({pair})" if dot else metric.label
        line = Line(incident.history.label, [(float(step), value) for step, value in points])
        yield figure(Chart(title, _alt(title, points, since), [line], unit=metric.unit, mark=mark))


def _alt(title: str, points: Sequence[tuple[int, float]], since: int | None) -> str:
    if not points:
        return f"{title}: not measured."
    (first, begin), (last, end) = points[0], points[-1]
    marked = "" if since is None else f"; onset at step {since}"
    return f"{title} goes from {tables.cell(begin)} at step {first} to {tables.cell(end)} at step {last}{marked}."


def _records(incident: Incident) -> Iterator[Markup]:
    """What the rest stands on, folded away."""
    for words, rows, columns, caption in (
        ("transitions of alerts", incident.alerts, _ALERTS, "Newest first"),
        ("decisions about the correction", incident.actions, _ACTIONS, "Newest first"),
        (
            "observations of weight versions",
            incident.weights,
            _WEIGHTS,
            "As seen by trainer and engines, newest first",
        ),
    ):
        whole = listed(rows, columns, caption, _NEWEST)
        yield element("details", element("summary", f"{len(rows):,} {words}"), whole)


def _configuration(history: History) -> Iterator[Markup]:
    facts = [
        [name, ", ".join("none" if value is None else str(value) for value in values)]
        for name, values in sorted(history.facts.items())
    ]
    if not facts:
        yield element("p", "No configuration was recorded.")
        return
    whole = table(
        "Everything recorded; several values where engines, requests or updates differ", ["setting", "value"], facts
    )
    yield element("details", element("summary", f"{len(facts)} settings"), whole)


def newest_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows in time's order, turned round."""
    return list(reversed(rows))
