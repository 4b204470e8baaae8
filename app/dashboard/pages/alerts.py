"""Alerts page: firing alerts with their actions, thresholds, notification channels, and incidents."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import streamlit as st

from logprobe.alerts.controller.standing import Standing
from logprobe.alerts.rules.actions import ACKNOWLEDGE, FIELDS, SILENCE, UNSILENCE
from logprobe.alerts.rules.notices import steps_around
from logprobe.alerts.rules.thresholds import of_home
from logprobe.alerts.sending.actions import CHANNELS, TEST
from logprobe.app.dashboard import acting, data, ui
from logprobe.app.dashboard.acting import BY, REASON, Field
from logprobe.app.dashboard.data import Look
from logprobe.app.dashboard.told import tell
from logprobe.app.dashboard.ui import Line
from logprobe.app.dashboard.verdict import Verdict, setting_lines
from logprobe.app.runs import Run
from logprobe.app.text.correction import remedy
from logprobe.app.text.judgement import SIGNS
from logprobe.app.text.numbers import number, when
from logprobe.app.view.account import Account, alert_remedies, read
from logprobe.app.view.story import of_account
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.judgement import FIRING, Severity
from logprobe.monitor.judging.document import leading

Row = Mapping[str, Any]

RECENT: Final = 30
_FOR: Final = Field("for", "for (90s, 10m, 2h, 1d)", "2h")
_NO_CHANNEL: Final = (
    "None, so no notifications are sent. List `channels` in `logprobe.yaml` of the data directory (`docs/alerts.md`)."
)


def draw(look: Look, run: Run | None) -> None:
    """Draw the page."""
    if ui.choice("list", ("alerts", "incidents"), "list") == "incidents":
        with ui.guarded("incidents"):
            _incidents(look)
    elif run is None:
        st.caption("Choose a run.")
    else:
        parts = {"alerts": lambda: _current(run.name), "thresholds": _thresholds, "channels": _channels}
        for name, part in parts.items():
            with ui.guarded(name):
                part()


# --- What fires ---


def _current(run: str) -> None:
    current = queries.alert_list(data.reader(), run=run).to_pylist()
    history = queries.alert_history(data.reader(), run=run).to_pylist()
    firing = [alert for alert in current if alert["phase"] in FIRING]
    pending = [alert for alert in current if alert["phase"] == "pending"]
    head = ("alert", "severity", "since", "value", "observation", "acknowledged by")
    ui.title("Firing", count(firing, channels=bool(acting.consult(CHANNELS, {})["channels"])))
    ui.table("firing", head, [_alert(alert, run) for alert in firing], empty="No alerts firing.")
    if firing:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            _care(firing[ui.pick("alert to take care of", [alert["rule"] for alert in firing], "firing alert")], run)
    if pending:
        ui.title("Pending", "condition met, but not yet for long enough")
        ui.table("pending", head, [_alert(alert, run) for alert in pending])
    _silences(run)
    ui.title("Recent", f"the last {RECENT} messages")
    recent = [message_line(each, run) for each in list(reversed(history))[:RECENT]]
    ui.table("recent", ("alert", "step", "message", "value", "observation"), recent, empty="None.")


def _silences(run: str) -> None:
    rows = queries.alert_silences(data.reader(), now=datetime.now(UTC).isoformat()).to_pylist()
    ui.title("Silenced", "matching alerts of any run send no notifications")
    what = [f"{each['rule']} in {each['run']}" for each in rows]
    lines = [
        Line([of, _when(each["expires_at"]), each["author"], each["reason"]])
        for of, each in zip(what, rows, strict=True)
    ]
    ui.table("silences", ("what", "until", "by", "reason"), lines, empty="None.")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if rows:
            at = ui.pick("silence", what, "silence")
            words = f"{what[at]} sends notifications again."
            acting.act("End", words, lambda given: _unsilence(rows[at]["id"], given), key="unsilence")
        fields = (
            Field("rule", "rule; * and ? are wildcards", required=False),
            Field("run", "run", run, required=False),
            _FOR,
            BY,
            REASON,
        )
        words = "Alerts that match both patterns send no notifications. An empty field matches anything."
        acting.act("New silence", words, _silence, key="new silence", fields=fields)


def count(firing: Sequence[Row], *, channels: bool) -> str:
    """Return the number of firing alerts, and of those without notification."""
    if not channels:
        return f"{len(firing)}; no channel is configured, so no notifications are sent" if firing else "0"
    unsent = sum(alert["muted"] is not None for alert in firing)
    return f"{len(firing)}, {unsent} of them without notification" if unsent else str(len(firing))


def _alert(alert: Row, run: str) -> Line:
    began = alert["started_step"]
    newest = began if alert["step"] is None else alert["step"]
    return Line(
        [
            alert["rule"],
            alert["severity"],
            _step(began, steps_around(newest or 0, began), run),
            number(alert["value"]),
            alert["words"] or "–",
            who(alert),
        ],
        alert["severity"],
    )


def _step(step: int | None, steps: str, run: str) -> str:
    """Return a step as a link to the chart of the steps around it, or a dash if it is unknown."""
    return "–" if step is None else ui.link(f"{step:,}", "", {"run": run, "steps": steps})


def who(alert: Row) -> str:
    """Return the user who acknowledged an alert, or the reason for a missing notification."""
    if alert["acknowledged_by"]:
        return str(alert["acknowledged_by"])
    return (alert["muted"] and f"not notified: {alert['muted']}") or "–"


def message_line(each: Row, run: str) -> Line:
    """Return a message about an alert as a line of the table."""
    step = _step(each["step"], steps_around(each["step"] or 0), run)
    cells = [each["rule"], step, each["state"].replace("_", " "), number(each["value"]), each["words"] or "–"]
    return Line(cells, each["severity"] if each["state"] == "firing" else "")


def _care(alert: Row, run: str) -> None:
    """Draw the possible actions for an alert. An acknowledged alert can only be silenced."""
    name, episode = alert["rule"], alert["episode"]
    if can_be_acknowledged(alert):
        words = f"Acknowledge `{name}`: no more notifications during this episode."
        acting.act(
            "Acknowledge", words, lambda given: _acknowledge(episode, given), key="acknowledge", fields=(BY, REASON)
        )
    words = f"Silence `{alert['rule']}` in run `{run}`: no notifications for this long, even if it fires again."
    fixed = {"rule": alert["rule"], "run": run}
    acting.act("Silence", words, lambda given: _silence({**given, **fixed}), key="silence", fields=(_FOR, BY, REASON))


def can_be_acknowledged(alert: Row) -> bool:
    """Return true if an alert fires and is not acknowledged."""
    return bool(alert["episode"]) and alert["phase"] in FIRING and not alert["acknowledged_by"]


def _acknowledge(episode: str, given: Mapping[str, str]) -> str:
    acting.ask(ACKNOWLEDGE, {"episode": episode, "author": given["by"], "reason": given["reason"]})
    return f"Acknowledged by {given['by']}."


def _silence(given: Mapping[str, str]) -> str:
    document = {"id": secrets.token_hex(4), "for": given["for"], "author": given["by"], "reason": given["reason"]}
    acting.ask(SILENCE, {**document, **{name: given[name] for name in FIELDS}})
    return f"Silenced by {given['by']}."


def _unsilence(silence: str, given: Mapping[str, str]) -> str:
    acting.ask(UNSILENCE, {"id": silence, "author": given["by"]})
    return "The silence has ended."


# --- Thresholds ---


def _thresholds() -> None:
    note = "`logprobe.yaml` is reloaded when it changes; `logprobe alerts try --template` begins one"
    ui.title("Thresholds", note)
    lines = [Line([each.name, each.severity, each.fires_when, each.runs]) for each in of_home(data.home())]
    ui.table("thresholds", ("alert", "severity", "fires when", "runs"), lines, empty="None.")


# --- Channels ---


def _channels() -> None:
    document = acting.consult(CHANNELS, {})
    lost = queries.outbox_dead_letters(data.reader(), now=datetime.now(UTC).isoformat()).to_pylist()
    ui.title("Channels", "`logprobe.yaml` is reloaded when it changes; secrets are never shown")
    if document["problem"]:
        ui.write(document["problem"], "warning")
    head = ("channel", "kind", "receives", "state", "last message", "sent", "waiting", "abandoned")
    ui.table("channels", head, [_channel(channel) for channel in document["channels"]], empty=_NO_CHANNEL)
    usable = [channel["name"] for channel in document["channels"] if channel["kind"]]
    if usable:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            name = usable[ui.pick("channel", usable, "channel")]
            acting.act(
                "Send a test",
                f"Sends a message to `{name}` now, marked as a test.",
                lambda given: _test(name, given),
                key="test channel",
            )
    if lost:
        ui.title("Not delivered", "messages of the last week that a channel rejected, or did not accept for a day")
        ui.table("undelivered", ("alert", "channel", "when", "attempts", "error"), list(map(_letter, lost)))


def _channel(channel: Row) -> Line:
    words, tone = channel_state(channel)
    return Line(
        [
            channel["name"],
            (channel["kind"] or "not configured any more").replace("_", " "),
            ", ".join(channel["severities"]) or "–",
            words,
            _when(channel["last_sent_at"]),
            f"{channel['sent']:,}",
            f"{channel['waiting']:,}",
            f"{channel['dead']:,}",
        ],
        tone,
    )


def channel_state(channel: Row) -> tuple[str, str]:
    """Return the state of a channel, with a tone if it needs attention."""
    if channel["kind"] is None:
        return ("messages are waiting for it to recover" if channel["waiting"] else "–"), ""
    if channel["waits_until"]:
        until = f"{datetime.fromisoformat(str(channel['waits_until'])):%H:%M:%S} UTC"
        return f"paused until {until}: {channel['why']}", "warning"
    if channel["last_error"]:
        return f"tries again: {channel['last_error']}", "warning"
    return "works" if channel["sent"] else "not used yet", ""


def _letter(letter: Row) -> Line:
    alert = f"{letter['rule']} of {letter['run']}, {letter['state'].replace('_', ' ')}"
    return Line([alert, letter["channel"], _when(letter["time"]), str(letter["attempts"]), letter["last_error"] or "–"])


def _test(channel: str, given: Mapping[str, str]) -> str:
    outcome = acting.ask(TEST, {"channel": channel, "author": given["by"]})
    words = f"{channel}: {'; '.join(outcome['lines'])}"
    if not outcome["delivered"]:
        raise ConfigurationError(words)
    return words


def _when(moment: datetime | str | None) -> str:
    return "never" if moment is None else f"{datetime.fromisoformat(str(moment)):%Y-%m-%d %H:%M} UTC"


# --- Incidents ---


def _incidents(look: Look) -> None:
    wanted = st.query_params.get("incident")
    rows = queries.incident_show(data.reader(), incident=wanted).to_pylist() if wanted else []
    if rows:
        _incident(look, rows[0])
        return
    if wanted:
        ui.write(f"There is no incident {wanted}; these are known.", "warning")
    known = queries.incident_list(data.reader(), runs=None).to_pylist()
    going_on = sum(each["closed_at"] is None for each in known)
    ui.title("Incidents", f"{going_on} open, {len(known) - going_on} closed" if known else "")
    head = ("incident", "opened, UTC", "since step", "cause", "closed, UTC")
    ui.table("incidents", head, [incident_line(each) for each in known], empty="No run has been critical.")


def incident_line(incident: Row) -> Line:
    """Return an incident as a line of the list, with a link."""
    opened = incident["closed_at"] is None
    cells = [
        ui.link(incident["id"], "alerts", {"list": "incidents", "run": incident["run"], "incident": incident["id"]}),
        when(incident["opened_at"]),
        "–" if incident["since_step"] is None else f"{incident['since_step']:,}",
        (incident["cause"] or "–").replace("_", " "),
        "open" if opened else when(incident["closed_at"]),
    ]
    return Line(cells, "critical" if opened else "")


def _incident(look: Look, opened: Row) -> None:
    run = (look.runs or {}).get(opened["run"])
    version = (opened["closed_at"], opened["diagnosed_at"], run and data.version_of(run))
    incident = data.kept(("incident", opened["id"]), version, lambda: _read(opened))
    ui.verdict(incident_verdict(incident))
    links = [
        ("All incidents", "alerts", {"list": "incidents"}),
        *((name, name.lower(), {"run": opened["run"]}) for name in ("Diagnosis", "Tokens", "Alerts", "Correction")),
    ]
    ui.links([ui.link(name, page, query) for name, page, query in links])
    tell(of_account(incident))


def _read(opened: Row) -> Account:
    run, reader = opened["run"], data.reader()
    return read(reader, run, Standing.read(reader, run), opened=opened)


def incident_verdict(incident: Account) -> Verdict:
    """Return the verdict above the document of an incident: its state and the next action."""
    opened = incident.opened or {}
    first = leading(incident.document)
    going_on = opened["closed_at"] is None
    tone: Severity = "critical" if going_on else "unknown"
    lines = [list(pair) for pair in alert_remedies(incident)]
    if first is not None:
        lines += [
            [first["cause"].replace("_", " "), remedy(first, incident.standing)],
            *setting_lines(first, incident.document, incident.standing),
        ]
    state = "Open" if going_on else "Closed"
    return Verdict(tone, SIGNS[tone][0], f"{state}: incident {opened['id']}", f"{incident.headline}.", do=lines)
