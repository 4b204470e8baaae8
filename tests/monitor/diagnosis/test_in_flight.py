"""Requests that go on over an update with old keys and values, beside cached prefixes; all other causes are cases of `tests/judging`."""

from __future__ import annotations

import numpy as np
from diagnosis_simulation import ANSWERS, Simulation, drift
from run_columns import Columns

from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.records import WeightRecord, Weights

KEPT = Weights(
    tuple(
        WeightRecord(
            version=str(version), step=version, source="engine", loaded=True, cache_cleared=False, pause_mode="keep",
            replica=None, tensors=None, checksum=None,
        )
        for version in range(1, 12)
    )
)  # fmt: skip


def half(columns: Columns) -> np.ndarray:
    return (np.arange(len(columns.step)) // ANSWERS) % 2 == 1


def switched(columns: Columns, gap: float) -> None:
    """Half of the answers change weights after 8 tokens, and differ from there."""
    rows = half(columns) & (columns.step > 0)
    columns.version[rows, :8] -= 1
    columns.t[rows, 8:] += (drift(gap, columns.t.shape) * (columns.t < -0.5))[rows, 8:]
    np.minimum(columns.t, -1e-6, out=columns.t)  # log-probs still


def test_what_requests_in_flight_make_is_not_the_prefix_cache() -> None:
    def both(columns: Columns) -> None:
        columns.requests["cached"] = np.ones(len(columns.step), np.bool_)
        rows = (columns.step > 0) & ~half(columns)
        columns.t[rows] += (drift(0.02, columns.t.shape) * (columns.t < -0.5))[rows]
        switched(columns, 0.3)

    found = diagnosed(Simulation(change=both, weights=KEPT).frame())["findings"]
    assert found[0]["cause"] == "inflight_stale_kv"
    assert all((f["share"]["now"] or 0) < 0.1 for f in found if f["cause"] == "stale_prefix_cache")
