"""Output of commands, without control characters from external names and messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO

from logprobe.collectors.plain_text import harmless, steerless

_STREAMS: Final = 2  # the number of the last standard stream


class Steerless:
    """A wrapper of a stream that writes no control characters except tabs and line breaks."""

    def __init__(self, stream: TextIO) -> None:
        """Wrap `stream`. `progress` may write control characters to the attribute `steering`, the wrapped stream."""
        self.steering = stream

    def write(self, text: str) -> int:
        """Write `text` and return its length."""
        self.steering.write(steerless(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.steering, name)


@contextmanager
def progress(words: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a transient progress bar on stderr if that is a terminal.

    The block receives a function whose argument is the completed amount out of `total`.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - heavy, and only for a terminal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(file=getattr(sys.stderr, "steering", sys.stderr))
    text = TextColumn("{task.description}", markup=False)
    with Progress(
        text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(harmless(words), total=total)
        yield lambda done: bar.update(task, completed=done)


def painted(pieces: Iterable[tuple[str, int | None]]) -> None:
    """Write texts on stdout, each in one of the terminal's 256 colours, or None for the default.

    Colours are omitted unless stdout is a terminal, or if ``NO_COLOR`` is set.
    """
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    out = getattr(sys.stdout, "steering", sys.stdout)
    for text, colour in pieces:
        safe = steerless(text)
        out.write(f"\033[38;5;{colour}m{safe}\033[0m" if colours and colour is not None else safe)
    out.write("\n")


def complete_streams() -> None:
    """Set three standard streams that accept any text.

    A closed stream (``>&-``) is connected to the null device. Otherwise the next opened file would get its number and
    receive the output of a library. Characters outside a stream's encoding are escaped.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STREAMS:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - an open file
        elif number:
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def steerless_streams() -> Iterator[None]:
    """Make standard output and error `Steerless`."""
    with redirect_stdout(Steerless(sys.stdout)), redirect_stderr(Steerless(sys.stderr)):
        yield
