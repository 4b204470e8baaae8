"""The parser of the command line. Imports nothing heavy: ``logprobe --help`` works without extras, and at once."""

from __future__ import annotations

import argparse
import os
import re
from difflib import get_close_matches
from typing import Final, NoReturn

from logprobe.app.parsers.arguments import declare_commands
from logprobe.app.parsers.commands import COMMANDS
from logprobe.collectors.plain_text import harmless

_HOME_HELP: Final = "folder that runs are recorded to (default: $LOGPROBE_HOME)"


# As argparse refuses a word that is none of those it knows.
_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_QUOTED: Final = re.compile(r"'([^']*)'")


class _Parser(argparse.ArgumentParser):
    """Says wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        unknown = _CHOICE.search(message)
        near = () if unknown is None else get_close_matches(unknown[1], _QUOTED.findall(unknown[2]), n=1)
        if unknown is not None and near:
            message = f"{message[: unknown.start()]}{unknown[1]!r} does not exist; did you mean {near[0]!r}?"
        self.exit(2, f"logprobe: {harmless(message)}; see: {self.prog} --help\n")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"logprobe {installed_version()}")
        parser.exit()


def build() -> argparse.ArgumentParser:
    """The parser of `logprobe`; ``command`` of what it parses names a module of `logprobe.app.commands`."""
    parser = _Parser(
        prog="logprobe",
        description="Live monitoring of the training-inference mismatch in reinforcement learning of language models.",
        epilog="`logprobe COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    declare_commands(commands, COMMANDS, _HOME_HELP, os.environ.get("LOGPROBE_HOME") or None)
    return parser


def installed_version() -> str:
    """Version of this package."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - a tenth of what a quick command takes

    try:
        return version("logprobe")
    except PackageNotFoundError:  # a checkout that was never installed
        return "unknown"
