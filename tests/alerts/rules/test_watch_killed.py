"""kill -9 of the service in the middle of a run: the alerts are those of a run that was not killed, each told exactly once."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import alert_processes
from alert_processes import RUN, THRESHOLDS, record
from processes import eventually

from logprobe.alerts.rules import backtest
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.store.store import Store

STEPS = 60
KILLS = 8
NAMES = frozenset(threshold.name for threshold in THRESHOLDS)


def test_the_same_messages_exactly_once(home: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["logprobe.monitor.service.service", "logprobe.alerts.rules.watch", "pyarrow.parquet"]
    )
    rng = random.Random(5)
    service = context.Process(target=alert_processes.serve, args=(home,), daemon=True)
    service.start()
    try:
        with Recorder(home, RUN, rank=0) as recorder:
            for step in range(STEPS):
                record(recorder, step)
                if step % (STEPS // KILLS) == STEPS // KILLS - 1:
                    # Some die while they start, some in the middle of what they do.
                    time.sleep(rng.uniform(0.0, 1.5))
                    assert service.is_alive()
                    service.kill()
                    service.join()
                    service = context.Process(target=alert_processes.serve, args=(home,), daemon=True)
                    service.start()
        eventually(lambda: seen(home) == STEPS - 1, "the thresholds have looked at every step")
    finally:
        service.kill()
        service.join()
    check(Home(home))


def seen(home: Path) -> int | None:
    try:
        with connect(home) as reader:
            rows = reader.read("alert_list", run=RUN).to_pylist()
            return min((row["step"] for row in rows if row["rule"] in NAMES and row["step"] is not None), default=None)
    except (ConnectionError, ValueError):  # it is just starting
        return None


def check(home: Home) -> None:
    with home.lock(), Store.open(home) as store:
        outcome = backtest.backtest(store, RUN, THRESHOLDS)
        told = store.query(
            "SELECT rule, step, state, severity, incident FROM notifications ORDER BY number"
        ).to_pylist()
        opened = store.query("SELECT id FROM incidents")["id"].to_pylist()
    told = [row for row in told if row["rule"] in NAMES]
    alone = [row for row in told if row["severity"] == "critical" and row["incident"] is None]
    assert [(row["step"], row["rule"], row["state"]) for row in told] == [
        (m.step, m.alert.rule, m.word) for m in outcome.messages
    ]
    assert (opened, alone) == ([f"{RUN}#1"], [])  # the run was never healthy for long
    assert len(told) >= STEPS // 10 * 3  # otherwise the test has shown nothing
