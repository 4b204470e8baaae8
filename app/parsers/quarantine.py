"""The parser of `logprobe quarantine`. Imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from logprobe.app.parsers.arguments import declare_actions, login


def declare(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands to `logprobe quarantine`."""
    declare_actions(parser, _ACTIONS)


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="RUN", help="only files of this run")
    parser.add_argument(
        "--json", action="store_true", help="one JSON document; also lists files that wait in the spool"
    )


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a name from `list`")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="*", help="a name from `list`")
    parser.add_argument("--all", action="store_true", help="all files, instead of naming them")
    parser.add_argument("--run", metavar="RUN", help="with --all: only those of this run")
    parser.add_argument("--author", default=login(), help="your name, for the audit (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="the result for each file, as one JSON document")


_ACTIONS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "list": ("list files in quarantine, and files in the spool that cannot be read now", _list),
    "show": ("show why a file was moved aside, what is in it and what to do", _show),
    "retry": ("move files back to the spool to be ingested again", _change),
    "drop": ("permanently delete files from quarantine", _change),
}
