"""The first screen of an incident report: healthy or not, since which step, how much, which layer, what to do, what was done. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.report.chart import Chart, Line, figure
from logprobe.app.report.html import Markup, element, table
from logprobe.app.text.correction import OFF, advised, remedy, settings, unnamed
from logprobe.app.text.diagnosis import ADVICE, LAYERS, extent, share
from logprobe.app.text.numbers import counted, duration, when
from logprobe.monitor.compare.history import History
from logprobe.monitor.diagnosis import Diagnosis
from logprobe.monitor.diagnosis.growth.rule import K3, RULE
from logprobe.monitor.diagnosis.leading import leading
from logprobe.monitor.diagnosis.named import in_words

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
