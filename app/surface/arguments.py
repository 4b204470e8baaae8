"""Values of the command line: their types and shared conversions, without heavy imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias, TypeVar

import click

from logprobe.collectors.errors import ConfigurationError

Number = TypeVar("Number", int, float)
Arguments: TypeAlias = SimpleNamespace  # options and arguments by name, with `home`, `home_given`, `json`, `debug`


def home_path(arguments: Arguments) -> str:
    """Return the local data directory of the command. Raises `ConfigurationError` for a bucket."""
    from logprobe.collectors.addresses import is_address  # noqa: PLC0415 - not for --help

    if is_address(arguments.home):
        raise ConfigurationError(
            f"{arguments.home} is a bucket; pass --home DIR, the folder of the service that pulls from it"
        )
    return str(arguments.home)


def login() -> str:
    """Return the name of the user for the audit."""
    import getpass  # noqa: PLC0415 - not for --help

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "somebody"


def refuse_usage(problem: str) -> NoReturn:
    """End the command with a usage error."""
    raise click.UsageError(problem, click.get_current_context(silent=True))


def require_run(run: str, runs: Sequence[str]) -> None:
    """Raise `ConfigurationError`, with near matches, unless `run` is among `runs`."""
    if run in runs:
        return
    import difflib  # noqa: PLC0415 - only for a mistake

    near = difflib.get_close_matches(run, runs, n=3, cutoff=0.5) or [
        name for name in runs if run.lower() in name.lower()
    ]
    if near:
        raise ConfigurationError(f"no run {run!r}; did you mean {', '.join(map(repr, near[:3]))}?")
    hint = "see `logprobe runs`" if runs else "start the service to ingest records: logprobe up"
    raise ConfigurationError(f"no run {run!r}; {hint}")


class Checked(click.ParamType[Any]):
    """A parameter type from a function that raises `ValueError` with the reason for a refusal."""

    name = "value"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        """Set `parse`, which turns text into a value."""
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`. Return a default that is not text unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _number(text: str, kind: Callable[[str], Number], fits: Callable[[Number], bool], problem: str) -> Number:
    """Return `text` as a number for which `fits` is true. Raises `ValueError`, also for NaN."""
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not fits(number):
        raise ValueError(f"{text!r} {problem}")
    return number


def port(text: str) -> int:
    """Return a port, 0 (any free one) to 65535. Raises `ValueError`."""
    return _number(text, int, lambda number: 0 <= number <= 65_535, "is not a valid port")  # noqa: PLR2004 - what a port is


def pace(text: str) -> float:
    """Return steps per second, above 0. Raises `ValueError`."""
    return _number(text, float, lambda speed: 0 < speed <= 1e6, "is not a valid pace; give steps per second, above 0")  # noqa: PLR2004


def positive(text: str) -> float:
    """Return a number above 0, which may be ``inf``. Raises `ValueError`."""
    return _number(text, float, lambda number: number > 0, "is not a number above 0")


def count(text: str) -> int:
    """Return a whole number above 0. Raises `ValueError`."""
    return _number(text if text.isdigit() else "0", int, lambda number: number > 0, "is not a whole number above 0")


def step_range(text: str) -> tuple[int | None, int | None]:
    """Return the bounds of ``A:B`` (both included, either may be missing) or of one step. Raises `ValueError`."""
    first, colon, last = text.partition(":")
    try:
        bounds = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        raise ValueError(f"{text!r} is not a range of steps; write A:B, A: or :B") from None
    return bounds if colon else (bounds[0], bounds[0])


def step(text: str) -> int:
    """Return a step. Raises `ValueError`."""
    return _number(text if text.isdecimal() else "-1", int, lambda number: number >= 0, "is not a step")
