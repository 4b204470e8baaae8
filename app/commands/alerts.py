"""`logprobe alerts`: firing alerts, acknowledgements, silences, and a dry run of thresholds."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from logprobe.alerts.rules import actions, backtest, thresholds
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.sending.actions import ping as tried
from logprobe.alerts.sending.channels.settings import channels_of
from logprobe.app.runs import find
from logprobe.app.surface.arguments import Arguments, home_path, login, require_run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.compare import Places
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import FIRING
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.actions import perform


def try_thresholds(arguments: Arguments) -> int:
    """List thresholds, or show the messages they would have sent about the given runs."""
    if arguments.template:
        print(thresholds.TEMPLATE, end="")
        return 0
    found = _thresholds(arguments)
    return _backtest(arguments, found) if arguments.runs else _show_thresholds(arguments, found)


def _show_thresholds(arguments: Arguments, found: Sequence[Threshold]) -> int:
    if arguments.json:
        print(tables.dump([threshold.model_dump(mode="json") for threshold in found]))
        return 0
    rows = [[t.name, t.severity, t.fires_when, t.runs] for t in found]
    if rows:
        print(tables.fitted(["alert", "severity", "fires when", "runs"], rows))
    else:
        print("no thresholds; `logprobe alerts try --template` prints one to begin with")
    return 0


def _backtest(arguments: Arguments, found: Sequence[Threshold]) -> int:
    outcomes = [_tried(name, arguments, found) for name in arguments.runs]
    if arguments.json:
        print(tables.dump([{"run": o.run, "steps": o.steps, "messages": backtest.rows(o)} for o in outcomes]))
        return 0
    for outcome in outcomes:
        rows = backtest.rows(outcome)
        print(f"{harmless(outcome.run)}: {outcome.steps} steps, {len(rows)} messages")
        if rows:
            columns = ["step", "state", "severity", "rule", "value", "words"]
            print(tables.fitted(columns, [[row[name] for name in columns] for row in rows]))
    return 0


def _thresholds(arguments: Arguments) -> Sequence[Threshold]:
    if arguments.file:
        return thresholds.of_file(Path(arguments.file))
    return thresholds.of_home(Path(home_path(arguments)))


def _tried(name: str, arguments: Arguments, found: Sequence[Threshold]) -> backtest.Outcome:
    with Places(home_path(arguments)) as places:
        place = find(places, name)
        return backtest.backtest(place.source, place.run, thresholds.for_run(found, place.run))


def acknowledge(arguments: Arguments) -> int:
    """Acknowledge an alert until it ends."""
    document = {
        "episode": arguments.episode,
        "author": login(),
        "reason": arguments.reason,
    }
    done = perform(actions.ACTIONS, Home(home_path(arguments)), actions.ACKNOWLEDGE, document)
    for episode in done["acknowledged"]:
        print(f"{harmless(episode)}: acknowledged by {harmless(login())}")
    return 0


def silence(arguments: Arguments) -> int:
    """Silence the alerts that match the patterns, or end a silence."""
    home = Home(home_path(arguments))
    if arguments.end:
        done = perform(actions.ACTIONS, home, actions.UNSILENCE, {"id": arguments.end, "author": login()})
        print(f"{harmless(done['id'])}: ended")
        return 0
    if not arguments.reason:
        raise ConfigurationError('--reason is required, e.g. --reason "maintenance"')
    document = {
        "id": secrets.token_hex(4),
        **_patterns(arguments.matchers),
        "for": arguments.span,
        "author": login(),
        "reason": arguments.reason,
    }
    done = perform(actions.ACTIONS, home, actions.SILENCE, document)
    print(f"{done['id']}: silenced until {tables.cell(done['expires_at'])}")
    return 0


def _patterns(pairs: Sequence[str]) -> dict[str, str]:
    """Return pairs such as ``["rule=few-*"]`` as a mapping. Raises `ConfigurationError`."""
    split = [pair.partition("=") for pair in pairs]
    if not split or any(name not in actions.FIELDS or not pattern for name, _, pattern in split):
        raise ConfigurationError("write run=PATTERN, rule=PATTERN, or both, such as rule=few-*")
    return {name: pattern for name, _, pattern in split}


def show_alerts(arguments: Arguments) -> int:
    """List alerts, silences and undelivered messages."""
    with open_reader(home_path(arguments)) as reader:
        if arguments.name:
            require_run(arguments.name, [row["run"] for row in queries.app_runs(reader).to_pylist()])
        name = "alert_history" if arguments.history else "alert_list"
        rows = reader.read(name, run=arguments.name).to_pylist()
        now = datetime.now(UTC).isoformat()
        silences = queries.alert_silences(reader, now=now).to_pylist()
        undelivered = queries.outbox_dead_letters(reader, now=now).to_pylist()
        lost = [row for row in undelivered if arguments.name in {None, row["run"]}]
    if not (arguments.all or arguments.history):
        rows = [row for row in rows if row["phase"] in FIRING]
    if arguments.json:
        print(
            tables.dump(
                {"messages" if arguments.history else "alerts": rows, "silences": silences, "undelivered": lost}
            )
        )
        return 0
    _print_rows(rows, _HISTORY if arguments.history else _STANDING)
    _print_rows(silences, _SILENCES, empty="")
    _print_rows(lost, _UNDELIVERED, empty="")
    return 0


def ping(arguments: Arguments) -> int:
    """Send a test message. Return 1 if the delivery failed."""
    now = datetime.now(UTC)
    routes = channels_of(Home(home_path(arguments)), environment=os.environ, clock=lambda: now)
    tested = tried(routes, arguments.channel, now)
    for line in tested["lines"]:
        print(f"{harmless(arguments.channel)}: {harmless(line)}")
    return 0 if tested["delivered"] else 1


def _print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str = "nothing") -> None:
    if rows:
        body = [[row[name] for name in columns] for row in rows]
        print(tables.fitted(columns, body))
    elif empty:
        print(empty)


# An episode is RUN/RULE/STEP.
_STANDING: Final = ("episode", "severity", "phase", "acknowledged_by", "muted", "words")
_HISTORY: Final = ("run", "step", "rule", "severity", "state", "value", "words")
_UNDELIVERED: Final = ("channel", "run", "rule", "state", "severity", "time", "attempts", "last_error")
_SILENCES: Final = ("id", "run", "rule", "author", "reason", "expires_at")
