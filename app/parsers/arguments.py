"""How commands declare their arguments, and what several of them read from these. Imports nothing heavy."""

from __future__ import annotations

import argparse
import difflib
import getpass
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from logprobe.collectors.addresses import is_address
from logprobe.collectors.errors import ConfigurationError

Number = TypeVar("Number", int, float)
Declare = Callable[[Any], object]  # adds to a parser, or to a group of one
Commands = Mapping[str, tuple[str, *tuple[Declare, ...]]]  # name → what it does, its arguments


def home_path(arguments: argparse.Namespace) -> str:
    """The home the user named. Raises `ConfigurationError` when there is none."""
    if not arguments.home:
        raise ConfigurationError("no home: pass --home DIR or set LOGPROBE_HOME")
    if is_address(arguments.home):
        raise ConfigurationError(
            f"{arguments.home} is a bucket; pass --home DIR, the folder of the service that pulls from it"
        )
    return str(arguments.home)


def login() -> str:
    """Who is at work here, as the audit names them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "somebody"


def port(text: str) -> int:
    """An argparse type: 0 (any free port) to 65535."""
    return _number(text, int, lambda number: 0 <= number <= 65_535, "is not a valid port")  # noqa: PLR2004 - what a port is


def pace(text: str) -> float:
    """An argparse type: steps per second, above 0."""
    return _number(text, float, lambda speed: 0 < speed <= 1e6, "is not a valid pace; give steps per second, above 0")  # noqa: PLR2004


def positive(text: str) -> float:
    """An argparse type: a number above 0; ``inf`` is one."""
    return _number(text, float, lambda number: number > 0, "is not a number above 0")


def count(text: str) -> int:
    """An argparse type: a whole number above 0."""
    return _number(text if text.isdigit() else "0", int, lambda number: number > 0, "is not a whole number above 0")


def _number(text: str, kind: Callable[[str], Number], fits: Callable[[Number], bool], problem: str) -> Number:
    """`text` as a number that `fits`, which NaN never does. Raises `ArgumentTypeError`."""
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not fits(number):
        raise argparse.ArgumentTypeError(f"{text!r} {problem}")
    return number


def step_range(text: str) -> tuple[int | None, int | None]:
    """An argparse type: ``A:B`` (both included, either may be missing) or one step."""
    first, colon, last = text.partition(":")
    try:
        bounds = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps; write A:B, A: or :B") from None
    return bounds if colon else (bounds[0], bounds[0])


def step_list(text: str) -> list[int]:
    """An argparse type: steps, separated by commas."""
    steps = text.split(",")
    if not all(step.isdecimal() for step in steps):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of steps; write STEP[,STEP]")
    return sorted({int(step) for step in steps})


def require_run(run: str, runs: Sequence[str]) -> None:
    """Raises `ConfigurationError`, with near matches, when `run` is not among `runs`."""
    if run in runs:
        return
    near = difflib.get_close_matches(run, runs, n=3, cutoff=0.5) or [
        name for name in runs if run.lower() in name.lower()
    ]
    if near:
        raise ConfigurationError(f"no run {run!r}; did you mean {', '.join(map(repr, near[:3]))}?")
    hint = "`logprobe runs` lists them" if runs else "nothing was ingested yet"
    raise ConfigurationError(f"no run {run!r}; {hint}")


def arg(names: str, words: str, **options: Any) -> Declare:
    """An argument as help shows it: ``--flag``, ``--option VALUE``, or its name and ``VALUE`` where it is positional;
    `options` as argparse has them."""
    parts = names.split()
    flags = [part for part in parts if part.startswith("--") and part != "--"] or parts[:1]
    if value := " ".join(part for part in parts if part not in flags):
        options["metavar"] = value
    elif not options:  # neither a value nor choices: a flag
        options["action"] = "store_true"
    return lambda parser: parser.add_argument(*flags, help=words, **options)


def one_of(*choices: Declare) -> Declare:
    """At most one of these arguments."""

    def declare(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for choice in choices:
            choice(group)

    return declare


def actions(commands: Commands, default: str | None = None) -> Declare:
    """Subcommands of a command that acts on a home. `default`: what it does without one."""

    def declare(parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=default is None)
        # Suppressed: not given here, what was given before the action stays.
        declare_commands(actions, commands, "folder that runs are recorded to", argparse.SUPPRESS)
        if default is not None:
            parser.set_defaults(**{**vars(actions.choices[default].parse_args([])), "action": default})

    return declare


def failing(code: int, document: Mapping[str, Any]) -> Declare:
    """Exit code of a command's errors, and what its ``--json`` then prints beside ``error``."""
    return lambda parser: parser.set_defaults(error_code=code, error_document=document)


def declare_commands(parsers: Any, commands: Commands, home_help: str, home: str | None) -> None:
    """Adds commands that act on a home, by default `home`, to what `add_subparsers` made."""
    for name, (words, *arguments) in commands.items():
        command = parsers.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        command.add_argument("--home", metavar="DIR", default=home, help=home_help)
        command.set_defaults(usage_error=command.error, error_code=1, error_document=None)
        for declare in arguments:
            declare(command)


RUN: Final = arg("name RUN", "a run that `logprobe runs` lists")
ANY_RUNS: Final = arg(
    "names RUN",
    "a run of the home, HOME:RUN, a recorded run's folder, or a bundle",
    nargs="+",
)
JSON: Final = arg("--json", "one JSON document")
JSON_OR_NULL: Final = arg("--json", "one JSON document; unknown is null")
AUTHOR: Final = arg("--author AUTHOR", "your name, for the audit (default: %(default)s)", default=login())
BY: Final = arg("--by NAME", "your name, for the audit (default: your user name)")


def steps(words: str) -> Declare:
    """A range of steps."""
    return arg("--steps A:B", words, type=step_range, default=(None, None))


def also(words: str) -> Declare:
    """Other homes whose runs are shown, too."""
    return arg("--also DIR", words, action="append", default=[])


def engine_args(default: str = "") -> Declare:
    """Of a fresh engine."""
    return arg(
        "--engine-args ARGS",
        'as `vllm serve` takes them, e.g. "--dtype bfloat16" (default: "%(default)s")',
        default=default,
    )


SCORER_MINUTES: Final = arg(
    "--scorer-minutes N", "limit of each scorer (default: %(default)s)", type=positive, default=15.0
)
