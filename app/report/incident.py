"""The one document about what went wrong with a run: since which step, in which layer, what to do and was done, and
what that stands on. Pure.

`logprobe show` and the page of an incident show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.alerts.rules.periods import HEALTHY_STEPS
from logprobe.app.report import changes as changed
from logprobe.app.report.chart import Chart, Line, figure, legend
from logprobe.app.text import tables
from logprobe.app.text.correction import OFF, advice_words, remedy, settings, unnamed
from logprobe.app.text.diagnosis import (
    HEAD,
    LAYERS,
    arm_cells,
    evidence_name,
    extent,
    headline,
    share,
    standing_of,
    unmeasured,
)
from logprobe.app.text.html import Markup, badge, element, listing, page, section, table
from logprobe.app.text.judgement import VERDICTS
from logprobe.app.text.numbers import counted, duration, when
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.compare.history import History
from logprobe.monitor.judgement import FIRING
from logprobe.monitor.judging.culprit import Picture
from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.expected import expected
from logprobe.monitor.judging.growth_rule import K3, RULE
from logprobe.monitor.judging.judgement import GROWS
from logprobe.monitor.judging.named import in_words
from logprobe.monitor.metrics.catalog import metric as declared

BEFORE: Final = 50  # steps before the onset in which changes are looked for
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
Rows = Sequence[Mapping[str, Any]]


def facts(incident: Incident) -> list[tuple[str, str]]:
    """Return the most important facts, as names and values."""
    document, history, standing = incident.document, incident.history, incident.standing
    pairs = [
        *_opened(incident.opened),
        ("since", _since(incident.since, history)),
        ("last good step", _good(incident)),
        ("extent", _extent(document)),
        ("layer", LAYERS[document["layer"]]),
        ("what to do", _remedy(incident)),
        ("setting", _setting(document, standing)),
        ("correction", advice_words(document, standing)),
        ("done about it", _done(incident.actions)),
        ("alerts", _alerts(incident.current)),
        ("recorded", _span(history)),
    ]
    return [(name, value) for name, value in pairs if value]


def summary(incident: Incident) -> Markup:
    """Names and values beside K3 over time."""
    pairs = [part for name, words in facts(incident) for part in (element("dt", name), element("dd", words))]
    return element("div", element("dl", *pairs), figure(_trend(incident.since, incident.history)), class_="first")


def _opened(opened: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield begin and end of an incident."""
    if opened is None:
        return
    at = "" if opened["opened_step"] is None else f", at step {opened['opened_step']:,}"
    yield "opened", f"{when(opened['opened_at'])} UTC{at}"
    if opened["closed_at"] is None:
        yield "closed", "not yet"
        return
    step = "" if opened["closed_step"] is None else f", at step {opened['closed_step']:,}"
    yield "closed", f"{when(opened['closed_at'])} UTC{step}"


def last_good(incident: Incident) -> int | None:
    """The last step before the onset; None: there is none, or no onset."""
    since = incident.since
    return None if since is None else max((step for step in incident.history.steps if step < since), default=None)


def _good(incident: Incident) -> str:
    """The last step before the onset, and the last checkpoint before it."""
    since = incident.since
    if since is None and incident.opened is None:
        return ""
    before = last_good(incident)
    step = "none: the first step recorded is concerned" if before is None else f"{before:,}"
    if since is None:
        step = "unknown: nothing says at which step the trouble began"
    saved = incident.saved
    if saved is None or not saved["checkpoints"]:
        return f"{step}; no checkpoint was recorded, so the last good one is unknown"
    if since is None:
        return step
    good = "none was saved before the onset"
    if saved["step"] is not None:
        good = f"step {saved['step']:,}" + (f", {saved['folder']}" if saved["folder"] else "")
    elif saved["deleted"] is not None:
        good = f"none is left; the last one before the onset, of step {saved['deleted']:,}, was deleted"
    return f"{step}; last good checkpoint: {good}"


def _since(since: int | None, history: History) -> str:
    if since is None:
        return ""
    first = ", its first step" if history.steps and since <= history.steps[0] else ""
    seconds = history.seconds.get(since)
    after = f", {duration(seconds)} after the first" if seconds and not first else ""
    at = history.at(since)
    return f"step {since:,}{first}{after}{'' if at is None else f', {when(at)} UTC'}"


def _extent(document: DiagnosisDocument) -> str:
    size = extent(document)
    doubling = document["doubling_steps"]
    pace = "" if doubling is None else f"; it doubles every {doubling:.0f} steps"
    return size and f"K3 is {size}{pace}"


def alert_line(incident: Incident) -> str:
    """Return in one line the alert that made a run critical although the diagnosis does not."""
    document = incident.document
    first, *others = [row["rule"] for row in incident.critical] or [None]
    by = "" if first is None else f" by alert {first}{f' and {len(others)} more' if others else ''}"
    since = "" if incident.since is None else f", since step {incident.since}"
    says = f"the diagnosis says: {VERDICTS[document['verdict']][1].lower()}"
    was = "is" if incident.fires else "was"
    return harmless(f"{document['run']} {was} critical{by}{since}; {says}")


def alert_remedies(incident: Incident) -> list[tuple[str, str]]:
    """The alerts that made a run critical whose diagnosis does not call it so, each with what to do about it; empty:
    the diagnosis does."""
    silent = "no message said what to do."
    return [(row["rule"], row["words"] or silent) for row in incident.critical] if incident.by_alert else []


def _remedy(incident: Incident) -> str:
    document, standing = incident.document, incident.standing
    first, parts = leading(document), [": ".join(pair) for pair in alert_remedies(incident)]
    if first is not None:
        part = share(first)
        parts.append(f"{first['cause'].replace('_', ' ')}{part and f' ({part})'}: {remedy(first, standing)}")
    if parts:
        return " ".join(parts)
    if incident.by_alert:
        return "see what happened: the diagnosis does not say"
    if document["verdict"] in {"growing", "critical"}:
        return "no credible cause found: see what is not measured"
    return "nothing" if document["verdict"] == "healthy" else ""


def _setting(document: DiagnosisDocument, standing: Standing) -> str:
    """Return the name of the remedy in the run's framework."""
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
    names = dict.fromkeys(row["rule"] for row in current if row["phase"] in FIRING)
    return ", ".join(f"{name} fires" for name in names) or "none fires"


def _span(history: History) -> str:
    if not history.steps:
        return "no steps"
    tokens = max(history.tokens.values())
    return f"{len(history.steps):,} steps, {history.steps[0]:,} to {history.steps[-1]:,}; {tokens:,.0f} trained tokens"


def _trend(since: int | None, history: History) -> Chart:
    """K3 with the band that is no growth, and the step of onset."""
    points = [(float(step), value) for step, value in sorted(history.trend(K3).items())]
    base, within = history.growth.baseline, RULE.growing.short_ratio
    band = (
        [] if base is None or not points else [(x, base / within, base * within) for x in (points[0][0], points[-1][0])]
    )
    mark = None if since is None else (float(since), f"since step {since}")
    alt = f"K3 over {len(points):,} steps" + ("" if since is None else f"; onset at step {since}")
    return Chart(
        "K3 and the band of its baseline", alt, [Line(history.label, points)], unit="nats", band=band, mark=mark
    )


def happened(incident: Incident) -> list[tuple[Any, ...]]:
    """Return the events as (UTC, step, what, words), in the order of time; what is known by its step alone stands by
    that step's time."""
    events = sorted(_events(incident), key=lambda event: (event[0] is None, event[0] or _NEVER))
    return [(when(time), *rest) for time, *rest in events]


Event = tuple[datetime | None, int | None, str, str | None]
_TOLD: Final = {"firing": "fires", "changed": "changes", "resolved": "ends"}


def _events(incident: Incident) -> Iterator[Event]:
    since, opened = incident.since, incident.opened
    if since is not None:
        by = "alert" if incident.document["since_step"] is None else "diagnosis"
        yield incident.history.at(since), since, "onset", f"as dated by the {by}"
    if opened is not None:
        yield opened["opened_at"], opened["opened_step"], "incident opened", "the run became critical"
        if opened["closed_at"] is not None:
            words = f"the run was healthy for {HEALTHY_STEPS} steps"
            yield opened["closed_at"], opened["closed_step"], "incident closed", words
    for row in reversed(incident.alerts):
        if (what := _TOLD.get(row["state"])) is not None:
            yield row["time"], row["step"], f"alert {row['rule']} {what}", row["words"]
    for row in reversed(incident.actions):
        yield row["time"], row["step"], f"correction {row['name'].replace('_', ' ')}", row["words"]
    for row in incident.deeds:
        yield row["time"], None, f"{row['action']}: {row['subject']}", f"{row['author']}: {row['words']}"


def changes(incident: Incident) -> list[tuple[Any, ...]]:
    """Return the changes in the steps before the onset, as (UTC, step, what, change): settings with both values,
    restarts, replicas, tags."""
    since = incident.since
    if since is None:
        return []
    configs = {(row["kind"], row["happened_at"]): row for row in incident.configs}
    rows: list[Event] = [
        (row["happened_at"], row["step"], *_change(row, configs.get((row["label"], row["happened_at"]))))
        for row in _before(incident, since)
        if row["kind"] != "weights"
    ]
    parts = changed.came_and_went(incident.parts, since)
    rows += [(incident.history.at(step), step, setting, change) for step, setting, change in parts]
    return [(when(time), *rest) for time, *rest in sorted(rows, key=lambda row: row[1] or 0)]


def _before(incident: Incident, since: int) -> list[Mapping[str, Any]]:
    """Events of the steps before the onset."""
    return [row for row in incident.events if row["step"] is not None and since - BEFORE <= row["step"] <= since]


def _changes(incident: Incident) -> Iterator[Markup]:
    """The same as a table, and how weights arrived."""
    since = incident.since
    if since is None:
        yield element("p", "No onset, so there is nothing before it.")
        return
    nothing = (
        f"No setting, replica or tag changed and nothing restarted in the {BEFORE} steps before step {since:,}, as far "
        "as recorded."
    )
    caption = f"Steps {max(since - BEFORE, 0):,} to {since:,}"
    yield listed_rows(changes(incident), ["UTC", "step", "what", "change"], caption, nothing)
    yield element("p", _updates([row for row in _before(incident, since) if row["kind"] == "weights"]))
    yield element(
        "p",
        "Versions of engine and framework are among the settings; the version of the trainer's own code is not "
        "recorded.",
    )


def _change(row: Mapping[str, Any], config: Mapping[str, Any] | None) -> tuple[str, str]:
    if row["kind"] == "config":
        return (
            (f"configuration of {changed.kind(config)}", changed.configured(config))
            if config
            else ("configuration changed", row["label"])
        )
    return {"restart": "collector restarted"}.get(row["kind"], row["kind"]), row["label"]


def _updates(updates: Rows) -> str:
    if not updates:
        return "No weight updates were recorded in these steps."
    kept = sum(row["cache_cleared"] is False for row in updates)
    modes = ", ".join(sorted({str(row["pause_mode"]) for row in updates if row["pause_mode"]})) or "not recorded"
    return (
        f"{counted(len(updates), 'weight update')}, {kept:,} of which left the prefix cache as it was; pause mode: "
        f"{modes}."
    )


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
_TONES: Final = {
    "healthy": "good",
    "watch": "unsure",
    "unknown": "unsure",
    "growing": "bad",
    "critical": "bad",
    "calibrating": "unsure",
    "no_data": "unsure",
}
_NEWEST: Final = 50  # rows of alerts, actions and updates


@dataclass(frozen=True)
class Incident:
    """Content of a report. `headline`: the verdict in a sentence; rows are those of the stored queries.

    `document`: the diagnosis. `current`: alerts as they are now; the others newest first. `sequences`: the worst of one
    step; `step`: which one, None: none was measured. `experiment`: the newest bisection; None: there is none.
    `standing`: of the correction. `deeds`: what people did about its alerts; `events`: updates, changed configurations
    and restarts; `configs`, `parts`: rows of `incident_configs` and `incident_parts`; `proof`: the picture of the
    finding that leads. `saved`: row of `incident_checkpoints`; None: no onset. `opened`: row of `incident_show`; None:
    the run as it stands. `critical`: its critical alerts, rows of `incident_critical`.
    """

    document: DiagnosisDocument
    headline: str
    history: History
    current: Rows = ()
    alerts: Rows = ()
    actions: Rows = ()
    sequences: Rows = ()
    step: int | None = None
    experiment: Mapping[str, Any] | None = None
    standing: Standing = OFF
    deeds: Rows = ()
    events: Rows = ()
    configs: Rows = ()
    parts: Rows = ()
    proof: Picture | None = None
    saved: Mapping[str, Any] | None = None
    opened: Mapping[str, Any] | None = None
    critical: Rows = ()

    @property
    def since(self) -> int | None:
        """First bad step, by the diagnosis or else by what opened the incident; None: not known."""
        since = self.document["since_step"]
        return since if since is not None or self.opened is None else self.opened["since_step"]

    @property
    def by_alert(self) -> bool:
        """True for an incident that an alert opened and the diagnosis does not account for."""
        return self.opened is not None and self.document["verdict"] not in GROWS

    @property
    def fires(self) -> bool:
        """True if the incident is open and a critical alert fires."""
        critical = (row["phase"] for row in self.current if row["severity"] == "critical")
        return self.opened is not None and self.opened["closed_at"] is None and not FIRING.isdisjoint(critical)


def report(incident: Incident) -> str:
    """Return the report on a run as it stands, as one file."""
    verdict: str = incident.document["verdict"]
    return page(
        f"Incident report: {incident.history.label}",
        badge(verdict.replace("_", " "), _TONES[verdict]),
        element("h1", incident.headline),
        *story(incident),
        *annex(incident),
    )


def story(incident: Incident) -> Iterator[Markup]:
    """Yield what went wrong, what was done about it, and what is known from elsewhere."""
    yield summary(incident)
    yield from _proof(incident)
    yield section(
        "What happened",
        listed_rows(
            happened(incident),
            ["UTC", "step", "what", "words"],
            "Onset, alerts, corrections, and what people did",
            "No alerts fired, and no correction was switched.",
        ),
    )
    yield section(f"What changed in the {BEFORE} steps before", *_changes(incident))
    yield section("Findings", *_findings(incident.document, incident.standing))
    yield from _experiment(incident.experiment)


def annex(incident: Incident) -> Iterator[Markup]:
    """Yield the evidence of the story."""
    yield section("Not measured", *_not_measured(incident.document))
    yield section("Trend", element("div", *_charts(incident), class_="charts"))
    yield section("Worst sequences", listed(incident.sequences, _SEQUENCES, _worst(incident.step), _NEWEST))
    yield section("Configuration", *_configuration(incident.history))


def listed_rows(rows: Sequence[Sequence[Any]], head: Sequence[str], caption: str, empty: str) -> Markup:
    """A table, or the words that there is nothing for one."""
    return table(caption, head, rows) if rows else element("p", empty)


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


def _findings(document: DiagnosisDocument, standing: Standing) -> Iterator[Markup]:
    """The leading one first."""
    if not document["findings"]:
        yield element("p", "No cause was found.")
    for finding in document["findings"]:
        name = finding["cause"].replace("_", " ")
        yield element("h3", f"{name} ({finding['layer'].replace('_', ' ')}; {standing_of(finding, document)})")
        yield element("p", finding["explanation"])
        yield element("p", element("strong", "Fix: "), remedy(finding, standing))
        evidence = [_evidence(test, value) for test, value in finding["evidence"].items()]
        yield table(f"Evidence for {name}", ["test", "value", "expected", "verdict"], evidence)


def _proof(incident: Incident) -> Iterator[Markup]:
    """K3 of the tokens concerned beside the others; no section where there is no such picture."""
    if (proof := incident.proof) is not None:
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
        rows = [arm_cells(arm, document) for arm in document["arms"]]
        arms = [table("Arms, by the share of K3 that they remove", list(HEAD), rows)] if rows else []
        yield section("Proof by experiment", element("p", headline(document)), *arms)


def _not_measured(document: DiagnosisDocument) -> Iterator[Markup]:
    if not document["not_measured"]:
        yield element("p", "All inputs of the diagnosis were measured.")
        return
    yield listing(map(unmeasured, document["not_measured"]))


def _charts(incident: Incident) -> Iterator[Markup]:
    since = incident.since
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
