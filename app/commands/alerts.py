"""`logprobe alerts`: what fires, who takes care, what is silenced; and trying rules out."""

from __future__ import annotations

import argparse
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from logprobe.alerts.rules import actions, backtest, ledger, rule_file
from logprobe.alerts.rules.judging.mutes import FIELDS
from logprobe.alerts.rules.rule_file import RuleBook, RuleFileError
from logprobe.alerts.sending import outbox, trial
from logprobe.alerts.sending.channels.settings import channels_of
from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import FIRING
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.actions import perform

_WORDS: Final = 110  # characters of a sentence in a table


def run(arguments: argparse.Namespace) -> int:
    """Does what was asked; → exit code."""
    return _COMMANDS[arguments.action](arguments)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        print(tables.dump(rule_file.schema()))
        return 0
    try:
        book = _book(arguments)
    except RuleFileError as error:
        print("\n".join(harmless(problem) for problem in error.problems))
        return 1
    if arguments.json:
        print(tables.dump([rule.model_dump(mode="json", by_alias=True) for rule in book.rules]))
        return 0
    rows = [
        [rule.name, rule.severity, rule.fires_when, rule.enabled, Path(book.files[rule.name]).name]
        for rule in book.rules
    ]
    print(tables.aligned(["rule", "severity", "fires when", "enabled", "defined in"], rows, widest=_WORDS))
    return 0


def _backtest(arguments: argparse.Namespace) -> int:
    book = _book(arguments)
    outcomes = [_tried(name, arguments, book) for name in arguments.runs]
    if arguments.json:
        print(tables.dump([_document(outcome) for outcome in outcomes]))
        return 0
    for outcome in outcomes:
        rows = backtest.rows(outcome)
        print(f"{harmless(outcome.run)}: {outcome.steps} steps, {len(rows)} messages")
        if rows:
            columns = ["step", "state", "severity", "rule", "slice", "value", "words"]
            print(tables.aligned(columns, [[row[name] for name in columns] for row in rows], widest=_WORDS))
    return 0


def _book(arguments: argparse.Namespace) -> RuleBook:
    if arguments.rules:
        return rule_file.load(Path(arguments.rules))
    return rule_file.for_home(Home(arguments.home)) if arguments.home else rule_file.load()


def _tried(name: str, arguments: argparse.Namespace, book: RuleBook) -> backtest.Outcome:
    with _source(name, arguments) as (source, known_as):
        return backtest.backtest(source, known_as, book.for_run(known_as))


@contextmanager
def _source(name: str, arguments: argparse.Namespace) -> Iterator[tuple[Source, str]]:
    """Where the steps of a run are read from: a folder of a recorded run, or the home."""
    if backtest.is_recorded(name):
        with backtest.opened(Path(name)) as source:
            yield source
        return
    with open_reader(home_path(arguments)) as reader:
        require_run(name, [row["run"] for row in queries.app_runs(reader).to_pylist()])
        yield reader, name


def _document(outcome: backtest.Outcome) -> dict[str, object]:
    transitions = [ledger.transition_row(outcome.run, transition) for transition in outcome.transitions]
    return {
        "run": outcome.run,
        "steps": outcome.steps,
        "messages": backtest.rows(outcome),
        "transitions": [{key: value for key, value in row.items() if key not in {"run", "key"}} for row in transitions],
    }


def _acknowledge(arguments: argparse.Namespace) -> int:
    document = {
        "episode": arguments.episode,
        "author": arguments.author,
        "reason": arguments.reason,
        "for": arguments.span,
    }
    done = perform(actions.ACTIONS, Home(home_path(arguments)), actions.ACKNOWLEDGE, document)
    for episode in done["acknowledged"]:
        until = f" until {tables.cell(done['until'])}" if done["until"] else ""
        print(f"{harmless(episode)}: acknowledged by {harmless(arguments.author)}{until}")
    return 0


def _silence(arguments: argparse.Namespace) -> int:
    home = Home(home_path(arguments))
    if arguments.end:
        done = perform(actions.ACTIONS, home, actions.UNSILENCE, {"id": arguments.end, "author": arguments.author})
        print(f"{harmless(done['id'])}: ended")
        return 0
    if not arguments.reason:
        raise ConfigurationError("--reason is required")
    document = {
        "id": secrets.token_hex(4),
        "matchers": _matchers(arguments.matchers),
        "for": arguments.span,
        "author": arguments.author,
        "reason": arguments.reason,
    }
    done = perform(actions.ACTIONS, home, actions.SILENCE, document)
    print(f"{done['id']}: silenced until {tables.cell(done['expires_at'])}")
    return 0


def _matchers(pairs: Sequence[str]) -> dict[str, str]:
    """``["rule=gap-*"]`` as a mapping. Raises `ConfigurationError`."""
    split = [pair.partition("=") for pair in pairs]
    if not split or any(not name or not sign or not pattern for name, sign, pattern in split):
        raise ConfigurationError(f"write FIELD=PATTERN, such as rule=gap-*; fields are {', '.join(FIELDS)} and labels")
    return {name: pattern for name, _, pattern in split}


def _list(arguments: argparse.Namespace) -> int:
    with open_reader(home_path(arguments)) as reader:
        if arguments.name:
            require_run(arguments.name, [row["run"] for row in queries.app_runs(reader).to_pylist()])
        name = "alert_history" if arguments.history else "alert_list"
        rows = reader.read(name, run=arguments.name).to_pylist()
        silences = queries.alert_silences(reader, now=datetime.now(UTC).isoformat()).to_pylist()
        lost = [row for row in outbox.dead_letters(reader) if arguments.name in {None, row["run"]}]
    if not (arguments.all or arguments.history):
        rows = [row for row in rows if row["phase"] in FIRING]
    if arguments.json:
        print(
            tables.dump(
                {"transitions" if arguments.history else "alerts": rows, "silences": silences, "undelivered": lost}
            )
        )
        return 0
    _print_rows(rows, _HISTORY if arguments.history else _STANDING)
    _print_rows(silences, _SILENCES, empty="")
    _print_rows(lost, _UNDELIVERED, empty="")
    return 0


def _test(arguments: argparse.Namespace) -> int:
    def clock() -> datetime:
        return datetime.now(UTC)

    home = Home(home_path(arguments))
    routes = channels_of(home, environment=os.environ, stopping=threading.Event(), clock=clock)
    outcome = trial.attempt(trial.chosen(routes, arguments.channel), now=clock())
    for line in outcome.lines:
        print(f"{harmless(arguments.channel)}: {harmless(line)}")
    return 0 if outcome.delivered else 1


def _print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str = "nothing") -> None:
    if rows:
        body = [[row[name] for name in columns] for row in rows]
        print(tables.aligned(list(columns), body, widest=_WORDS))
    elif empty:
        print(empty)


_STANDING: Final = (
    "run",
    "rule",
    "slice",
    "severity",
    "phase",
    "step",
    "value",
    "episode",
    "acknowledged_by",
    "muted",
    "words",
)
_HISTORY: Final = ("run", "step", "rule", "slice", "severity", "before", "after", "reason", "value", "words")
_UNDELIVERED: Final = ("channel", "run", "rule", "state", "severity", "time", "attempts", "last_error")
_SILENCES: Final = ("id", "matchers", "author", "reason", "expires_at")
_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "ack": _acknowledge,
    "backtest": _backtest,
    "check": _check,
    "list": _list,
    "silence": _silence,
    "test": _test,
}
