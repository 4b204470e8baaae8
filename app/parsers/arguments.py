"""What several subcommands read from their arguments."""

from __future__ import annotations

import argparse
import difflib
import getpass
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from logprobe.collectors.errors import ConfigurationError

_LEAST_MEMORY: Final = 256 << 20


def home_path(arguments: argparse.Namespace) -> str:
    """The home the user named. Raises `ConfigurationError` when there is none."""
    if not arguments.home:
        raise ConfigurationError("no home: pass --home DIR or set LOGPROBE_HOME")
    return str(arguments.home)


def login() -> str:
    """Who is at work here, as the audit names them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "somebody"


def port(text: str) -> int:
    """An argparse type: 0 (any free port) to 65535."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:  # noqa: PLR2004 - what a port is
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid port")
    return number


def pace(text: str) -> float:
    """An argparse type: steps per second, above 0."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1e6:  # noqa: PLR2004 - also refuses NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid pace; give steps per second, above 0")
    return speed


def positive(text: str) -> float:
    """An argparse type: a number above 0; ``inf`` is one."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def memory(text: str) -> int:
    """An argparse type: bytes, as in ``4GiB`` or ``512MiB``, or a number of bytes; 256 MiB at least.

    >>> memory("4GiB"), memory("0.5 gb")
    (4294967296, 536870912)
    """
    number, unit = text.strip().lower().removesuffix("ib").removesuffix("b"), 1
    for letter, factor in (("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)):
        if number.endswith(letter):
            number, unit = number[:-1], factor
    try:
        size = int(float(number) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 256MiB; write 4GiB or 512MiB")
    return size


def step_range(text: str) -> tuple[int | None, int | None]:
    """An argparse type: ``A:B`` (both included, either may be missing) or one step."""
    first, colon, last = text.partition(":")
    try:
        bounds = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of steps; write A:B, A: or :B") from None
    return bounds if colon else (bounds[0], bounds[0])


def require_run(run: str, known: Sequence[str]) -> None:
    """Raises `ConfigurationError`, with near matches, when `run` is not among `known`."""
    if run in known:
        return
    near = difflib.get_close_matches(run, known, n=3, cutoff=0.5) or [
        name for name in known if run.lower() in name.lower()
    ]
    if near:
        raise ConfigurationError(f"no run {run!r}; did you mean {', '.join(map(repr, near[:3]))}?")
    hint = "`logprobe runs` lists them" if known else "nothing was ingested yet"
    raise ConfigurationError(f"no run {run!r}; {hint}")


def declare_actions(
    parser: argparse.ArgumentParser,
    actions: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]],
    *,
    default: str | None = None,
) -> None:
    """Adds subcommands, name → (what it does, its arguments), to a command that acts on a home. `default`: what it does without one."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=default is None)
    for name, (words, add) in actions.items():
        command = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        # Suppressed: not given here, what was given before the action stays.
        command.add_argument(
            "--home", metavar="DIR", default=argparse.SUPPRESS, help="folder that runs are recorded to"
        )
        add(command)
        if name == default:
            parser.set_defaults(**{**vars(command.parse_args([])), "action": name})
