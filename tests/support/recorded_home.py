"""Homes that hold shipped runs, brought in through the real spool, ingest and join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from made_once import copy_of
from segments import RUN, spool

from logprobe.alerts.controller.job import Memory, remember
from logprobe.alerts.controller.situation import Action, Control, Phase
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import Directives
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester, IngestReport
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.store.store import Store

SAMPLE_DATA = Path(__file__).resolve().parents[2] / "sample_data"
RECORDED = ("v0-reference", "v1-initial", "late-growth", "v1-fixed")


def ingest_recorded(folder: Path, *names: str, before_step: int | None = None, from_step: int | None = None) -> None:
    """Ingests shipped runs, or their first steps, into the home `folder`; `from_step`: what an earlier call left out.

    A new home of the same runs is made once per test session, and copied.
    """
    if not names or from_step is not None or folder.exists():
        _ingest(folder, names, before_step, from_step)
        return
    name = "-".join(("runs", *names, str(before_step))).replace("/", "+")
    copy_of(name, lambda made: _ingest(made, names, before_step), folder)
    with Store.open(Home(folder)):
        pass  # its views say where the home is


def _ingest(folder: Path, names: Sequence[str], before_step: int | None, from_step: int | None = None) -> None:
    for name in names:
        recorded = RecordedRun(SAMPLE_DATA / name)
        writer = SpoolWriter(folder, name, "replay" if from_step is None else f"replay-{from_step}")
        for kind in recorded.kinds if from_step is None else ("training", "step"):
            table = recorded.table(kind)
            if from_step is not None:
                table = table.filter(pc.greater_equal(table["step"], from_step))
            if before_step is not None and kind in {"training", "step"}:
                table = table.filter(pc.less(table["step"], before_step))
            writer.write(kind, table)
    with Store.open(Home(folder)) as store:
        take_in(store)


def take_in(store: Store) -> IngestReport:
    """Ingests what lies in the spool; → the report of it."""
    return Ingester(store).run_once()


def ingest_control(folder: Path, name: str) -> None:
    """What a shipped run's controller decided, as the store remembers it: switched on, and left on."""
    decided = RecordedRun(SAMPLE_DATA / name).manifest["control"]["actions"]
    switched = next(each["details"] for each in decided if each["name"] == "switched_on")
    first = next(each["step"] for each in decided if each["name"] == "acknowledged")
    config = CorrectionConfig.from_dict(switched["config"])
    control = Control(Phase.APPLIED, config=config, from_step=first, switches=1, said=("effect",))
    directives = Directives(name).issue(first, config, "recorded")
    with Store.open(Home(folder)) as store, store.transaction() as cursor:
        for number, each in enumerate(decided):
            action = Action(*(each[part] for part in ("name", "reason", "words", "severity", "details")))
            memory = Memory(control, directives, number)
            remember(store, cursor, memory, [action], step=each["step"], now=datetime.fromisoformat(each["time"]))


def feed(store: Store, run: str = RUN, **kinds: Iterable[dict[str, Any]]) -> None:
    """Rows by record kind, through spool, ingest and archive, in files of their own."""
    spool(store.home.path, run, **kinds)
    take_in(store)
    store.archive.merge()
