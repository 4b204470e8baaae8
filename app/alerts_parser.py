"""The grammar of `logprobe alerts`. Imports nothing heavy."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable
from typing import Final

_RULES_HELP: Final = "a rule file (default: the home's alerts.yaml, or the rules that are shipped)"


def declare(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands to `logprobe alerts`."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (words, add) in _ACTIONS.items():
        command = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        # Suppressed: not given here, what was given before the action stays.
        command.add_argument(
            "--home", metavar="DIR", default=argparse.SUPPRESS, help="folder that runs are recorded to"
        )
        add(command)


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", metavar="RULES", nargs="?", help=_RULES_HELP)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--schema", action="store_true", help="print the JSON schema of rule files, for an editor")
    form.add_argument("--json", action="store_true", help="the rules in force as one JSON document")


def _backtest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run of the home, or the folder of a recorded run")
    parser.add_argument("--rules", metavar="FILE", help=_RULES_HELP)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _ack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "episode", metavar="EPISODE", help="as `list` names it; RUN or RUN/RULE: all that fire of those"
    )
    parser.add_argument(
        "--for", dest="span", metavar="SPAN", help="snooze: tell again if it still fires after 90s, 10m, 2h or 1d"
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
    parser.add_argument("--author", default=_login(), help="who does this (default: %(default)s)")
    parser.add_argument("--reason", default=None, help="why" + (" (required for a new silence)" if reason else ""))


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", nargs="?", help="only this run")
    parser.add_argument("--all", action="store_true", help="also what does not fire")
    parser.add_argument("--history", action="store_true", help="every change of state, oldest first")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _test(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "channel", metavar="CHANNEL", help="its name in the home's channels.yaml; from the environment: slack"
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "somebody"


_ACTIONS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "list": ("list the alerts that fire, and the silences in force", _list),
    "ack": ("say that you take care of an alert", _ack),
    "silence": ("tell nobody of some alerts for some time", _silence),
    "check": ("check a rule file", _check),
    "test": ("send a test message to a channel, and say what does not work", _test),
    "backtest": ("say what would have fired when, on runs that were recorded", _backtest),
}
