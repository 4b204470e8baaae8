"""The parser of `logprobe alerts`. Imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from logprobe.app.parsers.arguments import declare_actions, login

_RULES_HELP: Final = "a rule file (default: those of the home, or the built-in rules)"


def declare(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands to `logprobe alerts`."""
    declare_actions(parser, _ACTIONS, default="list")


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", metavar="RULES", nargs="?", help=_RULES_HELP)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--schema", action="store_true", help="print the JSON schema of rule files, for an editor")
    form.add_argument("--json", action="store_true", help="the effective rules as one JSON document")


def _backtest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run of the home, or the folder of a recorded run")
    parser.add_argument("--rules", metavar="FILE", help=_RULES_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _ack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "episode", metavar="EPISODE", help="an id from `list`; RUN or RUN/RULE: everything firing there"
    )
    parser.add_argument(
        "--for", dest="span", metavar="SPAN", help="snooze: notify again if it is still firing after 90s, 10m, 2h or 1d"
    )
    _who(parser, reason=False)


def _silence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "matchers", metavar="FIELD=PATTERN", nargs="*", help="run=exp-*, rule=gap-*, severity=warning, or a label"
    )
    parser.add_argument(
        "--for", dest="span", metavar="SPAN", default="1h", help="90s, 10m, 2h or 1d (default: %(default)s)"
    )
    parser.add_argument("--end", metavar="ID", help="end this silence instead")
    _who(parser, reason=True)


def _who(parser: argparse.ArgumentParser, *, reason: bool) -> None:
    parser.add_argument("--author", default=login(), help="your name, for the audit (default: %(default)s)")
    parser.add_argument("--reason", default=None, help="why" + (" (required for a new silence)" if reason else ""))


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", nargs="?", help="only this run")
    parser.add_argument("--all", action="store_true", help="also alerts that are not firing")
    parser.add_argument("--history", action="store_true", help="every change of state, oldest first")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _test(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "channel", metavar="CHANNEL", help="a name from the home's settings; from the environment: slack"
    )


_ACTIONS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "list": ("list firing alerts and active silences", _list),
    "ack": ("acknowledge an alert", _ack),
    "silence": ("silence matching alerts for a while", _silence),
    "check": ("check a rule file", _check),
    "test": ("send a test message to a channel, and report what does not work", _test),
    "backtest": ("show what would have fired when, on recorded runs", _backtest),
}
