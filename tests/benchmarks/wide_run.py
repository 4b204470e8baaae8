"""A run as long and as wide as a dashboard has to bear: 1,000 steps × 1,000 series, written the way every run is.

The catalog's metrics come from recorded tokens; what is missing to 1,000 series are scalars that the trainer reports with each
step. Both go through the Recorder, the spool, ingest and the step job.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from recorded_home import take_in
from synthetic_run import SyntheticRun

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.store.store import Store

RUN = "wide"
STEPS = 1000
SERIES = 1000
_AT_ONCE = 20  # steps between two flushes: what a Recorder holds is bounded


class WideRun:
    """Records steps with all metrics that a synthetic run can have, and as many scalars as make up `SERIES` series."""

    def __init__(self, recorder: Recorder, *, first_step: int = 0) -> None:
        self._recorder = recorder
        self._synthetic = SyntheticRun(recorder, onset=STEPS // 2)
        self._synthetic.next_step = first_step
        self._names = [f"layer_{number:03d}/grad_norm" for number in range(SERIES - len(KEYS))]
        self._rng = np.random.default_rng(11)

    def record(self, steps: int) -> int:
        """The next `steps` steps, which lie in the spool on return; → the newest one."""
        first = self._synthetic.next_step
        for step in range(first, first + steps):
            values = self._rng.lognormal(size=len(self._names)).tolist()
            self._recorder.step(step, dict(zip(self._names, values, strict=True)))
        self._synthetic.record(steps)
        return self._synthetic.next_step - 1


def make(home: Path) -> int:
    """Records the run and brings it into the store, as the service does; → points of the run that are stored."""
    with Recorder(home, RUN) as recorder:
        run = WideRun(recorder)
        for _ in range(STEPS // _AT_ONCE):
            run.record(_AT_ONCE)
    with Store.open(Home(home)) as store:
        take_in(store)
        return _points(store)


def _points(store: Store) -> int:
    """Values of the run's metrics, those included that are known to be unknown, and of its scalars."""
    sql = """
    SELECT (SELECT count(*) FROM step_metrics WHERE run = $run)
         + (SELECT sum(cardinality(scalars)) FROM step_records WHERE run = $run) AS points
    """
    return int(store.query(sql, {"run": RUN})["points"][0].as_py())
