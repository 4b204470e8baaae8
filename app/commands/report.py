"""`logprobe report RUN [--html FILE]`: an incident report of one run, as one HTML file that needs no network.

A RUN is a run of the home, ``HOME:RUN``, a folder with a recorded run, or a bundle; no service is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from logprobe.app.commands import diagnose as words
from logprobe.app.commands.compare import find
from logprobe.app.report.incident import CHARTS, Incident, newest_first, report
from logprobe.app.report.written import write_report
from logprobe.monitor import worst
from logprobe.monitor.compare import Place, Places
from logprobe.monitor.compare.history import history
from logprobe.monitor.diagnosis import diagnose
from logprobe.monitor.diagnosis.accepted import accepted
from logprobe.monitor.diagnosis.growth.rule import K3
from logprobe.monitor.diagnosis.proven import latest

_SEQUENCES: Final = 10


def run(arguments: argparse.Namespace) -> int:
    """Writes the report."""
    with Places(arguments.home, arguments.ca) as places:
        place = find(places, arguments.name)
        document = report(read(place))
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in place.run)
    write_report(Path(arguments.html or f"{name}.html"), document)
    return 0


def read(place: Place) -> Incident:
    """Everything that is reported of one run. Raises `QueryError` as the source does."""
    source, run = place.source, place.run
    whole = history(place, CHARTS)
    found = diagnose(source, run, accepted=accepted(source, run))
    gap = whole.trend(K3)
    step = max(gap, key=lambda step: gap[step], default=None)
    sequences = [] if step is None else worst.sequences(source, run, steps=(step, step), count=_SEQUENCES).to_pylist()
    return Incident(
        diagnosis=found,
        headline=words.text(found).partition("\n")[0],
        history=whole,
        current=source.read("alert_list", run=run).to_pylist(),
        alerts=newest_first(source.read("alert_history", run=run).to_pylist()),
        actions=newest_first(source.read("controller_actions", run=run).to_pylist()),
        weights=newest_first(source.read("diagnosis_weights", run=run).to_pylist()),
        sequences=sequences,
        step=step,
        experiment=latest(source, run, "bisect"),
    )
