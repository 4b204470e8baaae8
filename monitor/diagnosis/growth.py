"""The growth of a run's K3: the one place that reads what the rule of `onset` needs besides the values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from logprobe.monitor.diagnosis.onset import judge
from logprobe.monitor.diagnosis.result import Growth


class Source(Protocol):
    """A `Reader` or a `Store`."""

    def read(self, name: str, /, **params: object) -> pa.Table:
        """Rows of a stored query."""


def growth_of(
    source: Source,
    run: str,
    steps: Sequence[int],
    values: Iterable[float | None],
    *,
    reconfigured: bool = True,
) -> Growth:
    """The verdict on K3 by the run's own past.

    Args:
        source: where the configuration changes of `run` are read; the baseline starts over at each.
        run: which run.
        steps: its steps, ascending.
        values: K3 of the pair `backend` at each; None or NaN where it was not measured.
        reconfigured: False when the configuration is known not to have changed, which saves a read.
    """
    changes = source.read("diagnosis_config_changes", run=run)["step"].to_pylist() if reconfigured else []
    known = [value if value is not None and math.isfinite(value) else None for value in values]
    return judge(steps, known, config_changes=changes)
