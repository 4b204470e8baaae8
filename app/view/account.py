"""Account of an incident or of the present state of a run: onset, events, and preceding changes.

`logprobe show`, the report and the page of an incident show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.alerts.rules.periods import HEALTHY_STEPS
from logprobe.app.text.correction import OFF, remedy
from logprobe.app.text.diagnosis import share, verdict_line
from logprobe.app.text.judgement import VERDICTS
from logprobe.app.text.numbers import duration, when
from logprobe.app.view import changes as changed
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.compare import Place
from logprobe.monitor.compare.history import History, history
from logprobe.monitor.judgement import FIRING
from logprobe.monitor.judging.diagnosing import diagnosis_of
from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.judging.judgement import GROWS
from logprobe.monitor.queries import Source

BEFORE: Final = 50  # steps before the onset in which changes are looked for
_SOON: Final = 5  # steps after the onset in which what came up may still be its cause
_BEFORE_IT: Final = timedelta(hours=1)  # where no step says when to begin
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_TOLD: Final = {"firing": "fires", "changed": "changes", "resolved": "ends"}
_INTERNAL: Final = frozenset({"document", "told"})
_EVENT: Final = ("time", "step", "what", "words")
Row = Mapping[str, Any]
Rows = Sequence[Row]
Event = tuple[datetime | None, int | None, str, str | None]


@dataclass(frozen=True)
class Account:
    """Content of an account. Rows are those of the stored queries, in chronological order.

    Attributes:
        document: diagnosis stored with the incident.
        history: K3 over steps, and the times of steps.
        standing: standing of the correction.
        current: present alerts.
        alerts, actions: messages, and actions of the controller.
        deeds: actions of users on the alerts.
        events: updates of weights, changed configurations, restarts.
        configs, parts: configurations, and replicas and tags.
        saved: row of `incident_checkpoints`, or None without an onset.
        opened: row of `incident_show`, or None for the run without an incident.
        critical: critical alerts of the incident, rows of `incident_critical`.
    """

    document: DiagnosisDocument
    history: History
    standing: Standing = OFF
    current: Rows = ()
    alerts: Rows = ()
    actions: Rows = ()
    deeds: Rows = ()
    events: Rows = ()
    configs: Rows = ()
    parts: Rows = ()
    saved: Row | None = None
    opened: Row | None = None
    critical: Rows = ()

    @property
    def since(self) -> int | None:
        """First bad step by the diagnosis, or by the alert that opened the incident, or None if unknown."""
        since = self.document["since_step"]
        return since if since is not None or self.opened is None else self.opened["since_step"]

    @property
    def by_alert(self) -> bool:
        """True for an incident that an alert opened and the diagnosis does not account for."""
        return self.opened is not None and self.document["verdict"] not in GROWS

    @property
    def headline(self) -> str:
        """Verdict as a sentence, or the alert that opened the incident."""
        if not self.by_alert or self.opened is None:
            return verdict_line(self.document)
        first, *others = [row["rule"] for row in self.critical] or [None]
        by = "" if first is None else f" by alert {first}{f' and {len(others)} more' if others else ''}"
        since = "" if self.since is None else f", since step {self.since}"
        says = f"the diagnosis says: {VERDICTS[self.document['verdict']][1].lower()}"
        phases = (row["phase"] for row in self.current if row["severity"] == "critical")
        fires = self.opened["closed_at"] is None and not FIRING.isdisjoint(phases)
        return harmless(f"{self.document['run']} {'is' if fires else 'was'} critical{by}{since}; {says}")

    @property
    def last_good(self) -> int | None:
        """Last step before the onset, or None without such a step or without an onset."""
        since = self.since
        return None if since is None else max((step for step in self.history.steps if step < since), default=None)

    def incident(self) -> dict[str, object] | None:
        """Return the JSON form of the incident, or None for an account without an incident."""
        if self.opened is None:
            return None
        return {
            **{name: value for name, value in self.opened.items() if name not in _INTERNAL},
            "facts": dict(facts(self)),
            "happened": [dict(zip(_EVENT, row, strict=True)) for row in happened(self)],
            "changes": [dict(zip(_EVENT, row, strict=True)) for row in changes(self)],
            "last_good_step": self.last_good,
            "checkpoint": self.saved and self.saved["step"],
            "checkpoint_folder": self.saved and self.saved["folder"],
        }


def read(
    source: Source,
    run: str,
    standing: Standing,
    *,
    diagnosis: DiagnosisDocument | None = None,
    opened: Row | None = None,
) -> Account:
    """Read the account of a run. Raises `QueryError`.

    Args:
        source: store or its service.
        run: name of the run.
        standing: standing of its correction.
        diagnosis: present diagnosis of the run, or None to read it.
        opened: row of `incident_show` for an incident, which stores a separate diagnosis.
    """
    place = Place(run, run, source)
    kept = None if opened is None or opened["document"] is None else json.loads(opened["document"])
    document = kept or diagnosis or diagnosis_of(source, run)[0]
    account = Account(
        document=document,
        history=history(place, [K3]),
        standing=standing,
        current=queries.alert_list(source, run=run).to_pylist(),
        alerts=queries.alert_history(source, run=run).to_pylist(),
        actions=standing.actions,
        deeds=queries.user_actions_of(source, run=run).to_pylist(),
        events=queries.app_events(source, run=run).to_pylist(),
        opened=opened,
    )
    if (since := account.since) is not None:
        account = replace(
            account,
            saved=queries.incident_checkpoints(source, run=run, before=since).to_pylist()[0],
            configs=queries.incident_configs(source, run=run).to_pylist(),
            parts=queries.incident_parts(source, run=run, first=since - BEFORE, last=since + _SOON).to_pylist(),
        )
    return account if opened is None else _of(account, source, opened)


def newest(source: Source, run: str) -> Row | None:
    """Return the row of `incident_show` of the last incident of a run, or None without an incident."""
    rows = queries.incident_list(source, runs=[run]).to_pylist()
    last = max(rows, key=lambda row: row["number"], default=None)
    return None if last is None else queries.incident_show(source, incident=last["id"]).to_pylist()[0]


def _of(account: Account, source: Source, opened: Row) -> Account:
    """Return the account from shortly before the onset of an incident until its end."""
    begins, ends = _begins(account, opened), opened["closed_at"]

    def during(rows: Rows) -> Rows:
        times = ((row, row["time"]) for row in rows)
        return [row for row, time in times if time is None or (time >= begins and (ends is None or time <= ends))]

    critical = queries.incident_critical(source, incident=opened["id"]).to_pylist()
    if not critical:  # silenced, so that there is no message
        fired = (r["rule"] for r in account.current if r["severity"] == "critical" and r["phase"] in FIRING)
        critical = [{"rule": rule, "words": ""} for rule in dict.fromkeys(fired)]
    alerts, actions, deeds = (during(rows) for rows in (account.alerts, account.actions, account.deeds))
    return replace(account, critical=critical, alerts=alerts, actions=actions, deeds=deeds)


def _begins(account: Account, opened: Row) -> datetime:
    """Return the start of the account: `BEFORE` steps before the onset, or one hour before the incident was opened."""
    earliest: datetime = opened["opened_at"] - _BEFORE_IT
    if account.since is None:
        return earliest
    steps = [step for step in account.history.steps if step >= account.since - BEFORE]
    return min(earliest, account.history.at(steps[0]) or earliest) if steps else earliest


def facts(account: Account) -> list[tuple[str, str]]:
    """Return start, end, last good step, remedy and past actions as names and values."""
    pairs = [
        *_opened(account.opened),
        ("since", _since(account.since, account.history)),
        ("last good step", _good(account)),
        ("what to do", _what_to_do(account)),
        ("done about it", _done(account.actions)),
    ]
    return [(name, value) for name, value in pairs if value]


def _opened(opened: Row | None) -> Iterator[tuple[str, str]]:
    if opened is None:
        return
    for name in ("opened", "closed"):
        time, step = opened[f"{name}_at"], opened[f"{name}_step"]
        yield name, "not yet" if time is None else f"{when(time)} UTC{'' if step is None else f', at step {step:,}'}"


def _since(since: int | None, history: History) -> str:
    if since is None:
        return ""
    first = ", its first step" if history.steps and since <= history.steps[0] else ""
    seconds, at = history.seconds.get(since), history.at(since)
    after = f", {duration(seconds)} after the first" if seconds and not first else ""
    return f"step {since:,}{first}{after}{'' if at is None else f', {when(at)} UTC'}"


def _good(account: Account) -> str:
    """Return the last step before the onset, and the last checkpoint before it."""
    since, saved = account.since, account.saved
    if since is None and account.opened is None:
        return ""
    before = account.last_good
    step = "none: the first step recorded is concerned" if before is None else f"{before:,}"
    if since is None:
        step = "unknown: nothing says at which step the trouble began"
    if saved is None or not saved["checkpoints"]:
        return f"{step}; no checkpoint was recorded, so the last good one is unknown"
    good = "none was saved before the onset"
    if saved["step"] is not None:
        good = f"step {saved['step']:,}" + (f", {saved['folder']}" if saved["folder"] else "")
    elif saved["deleted"] is not None:
        good = f"none is left; the last one before the onset, of step {saved['deleted']:,}, was deleted"
    return f"{step}; last good checkpoint: {good}"


def alert_remedies(account: Account) -> list[tuple[str, str]]:
    """Return the alerts that made a run critical in contrast to its diagnosis, each with its remedy."""
    silent = "no message said what to do."
    return [(row["rule"], row["words"] or silent) for row in account.critical] if account.by_alert else []


def _what_to_do(account: Account) -> str:
    first, parts = leading(account.document), [": ".join(pair) for pair in alert_remedies(account)]
    if first is not None:
        part = share(first)
        named = f"{first['cause'].replace('_', ' ')}{part and f' ({part})'}"
        parts.append(f"{named}: {remedy(first, account.standing)}")
    if parts:
        return " ".join(parts)
    if account.by_alert:
        return "see what happened: the diagnosis does not say"
    grows = account.document["verdict"] in {"growing", "critical"}
    return "no credible cause found: see what is not measured" if grows else ""


def _done(actions: Rows) -> str:
    if not actions:
        return "nothing switched, suggested or refused"
    last = next((row for row in reversed(actions) if row["name"] != "effect"), actions[-1])  # what came of it follows
    at = "" if last["step"] is None else f" at step {last['step']:,}"
    return f"{last['name'].replace('_', ' ')}{at}: {last['words']}"


def happened(account: Account) -> list[tuple[Any, ...]]:
    """Return the events as (UTC, step, what, words) in chronological order."""
    events = sorted(_events(account), key=lambda event: (event[0] is None, event[0] or _NEVER))
    return [(when(time), *rest) for time, *rest in events]


def _events(account: Account) -> Iterator[Event]:
    since, opened = account.since, account.opened
    if since is not None:
        by = "alert" if account.document["since_step"] is None else "diagnosis"
        yield account.history.at(since), since, "onset", f"as dated by the {by}"
    if opened is not None:
        yield opened["opened_at"], opened["opened_step"], "incident opened", "the run became critical"
        if opened["closed_at"] is not None:
            words = f"the run was healthy for {HEALTHY_STEPS} steps"
            yield opened["closed_at"], opened["closed_step"], "incident closed", words
    for row in account.alerts:
        if (what := _TOLD.get(row["state"])) is not None:
            yield row["time"], row["step"], f"alert {row['rule']} {what}", row["words"]
    for row in account.actions:
        yield row["time"], row["step"], f"correction {row['name'].replace('_', ' ')}", row["words"]
    for row in account.deeds:
        yield row["time"], None, f"{row['action']}: {row['subject']}", f"{row['author']}: {row['words']}"


def changes(account: Account) -> list[tuple[Any, ...]]:
    """Return the changes in the `BEFORE` steps before the onset, as (UTC, step, what, change).

    Changes concern settings (with both values), restarts, replicas and tags.
    """
    since = account.since
    if since is None:
        return []
    configs = {(row["kind"], row["happened_at"]): row for row in account.configs}
    rows: list[Event] = [
        (row["happened_at"], row["step"], *_change(row, configs.get((row["label"], row["happened_at"]))))
        for row in account.events
        if row["kind"] != "weights" and row["step"] is not None and since - BEFORE <= row["step"] <= since
    ]
    parts = changed.came_and_went(account.parts, since)
    rows += [(account.history.at(step), step, setting, change) for step, setting, change in parts]
    return [(when(time), *rest) for time, *rest in sorted(rows, key=lambda row: row[1] or 0)]


def _change(row: Row, config: Row | None) -> tuple[str, str]:
    if row["kind"] != "config":
        return str({"restart": "collector restarted"}.get(row["kind"], row["kind"])), row["label"]
    if config is None:
        return "configuration changed", row["label"]
    return f"configuration of {changed.kind(config)}", changed.configured(config)
