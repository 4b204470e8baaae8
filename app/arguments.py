"""What several subcommands read from their arguments."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

from logprobe.collectors.errors import ConfigurationError


def home_path(arguments: argparse.Namespace) -> str:
    """The home the user named. Raises `ConfigurationError` when there is none."""
    if not arguments.home:
        raise ConfigurationError("which home? pass --home DIR, or set LOGPROBE_HOME")
    return str(arguments.home)


def port(text: str) -> int:
    """An argparse type: 0 (any free port) to 65535."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:  # noqa: PLR2004 - what a port is
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return number


def pace(text: str) -> float:
    """An argparse type: steps per second, above 0."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1e6:  # noqa: PLR2004 - also refuses NaN
        raise argparse.ArgumentTypeError(f"{text!r} is no pace; give steps per second, above 0")
    return speed


def positive(text: str) -> float:
    """An argparse type: a number above 0; ``inf`` is one."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def step_range(text: str) -> tuple[int | None, int | None]:
    """An argparse type: ``A:B`` (both included, either may be missing) or one step."""
    first, colon, last = text.partition(":")
    try:
        bounds = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps; write A:B, A: or :B") from None
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
