"""`logprobe report RUN… [--html FILE|DIR]`: an incident report of each run, as one HTML file that needs no network.

A RUN is a run of the home, ``HOME:RUN``, a folder with a recorded run, or a bundle; no service is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from logprobe.app.commands.compare import alone
from logprobe.app.report.gather import read
from logprobe.app.report.incident import report
from logprobe.app.report.written import write_report
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare import Place, Places


def run(arguments: argparse.Namespace) -> int:
    """Writes the reports, each as soon as it is there."""
    names: list[str] = arguments.names
    target = Path(arguments.html or ".")
    if len(names) > 1 and not target.is_dir():
        raise ConfigurationError(f"--html {target}: reports of several runs need a folder that exists")
    taken: set[str] = set()
    with Places(arguments.home) as places:
        for asked in names:
            with alone(places, asked) as place:
                name, document = _document(place)
            one = len(names) == 1 and arguments.html
            write_report(target if one else target / f"{_unlike(taken, name)}.html", document)
    return 0


def _unlike(taken: set[str], name: str) -> str:
    """`name`, or with a number where another run has it; adds it to `taken`."""
    free = next(label for label in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))) if label not in taken)
    taken.add(free)
    return free


def _document(place: Place) -> tuple[str, str]:
    """A name for the file, and the report."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in place.run)
    return name, report(read(place))
