"""The picture of a finding: K3 of the tokens that it concerns beside the others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from logprobe.monitor.judging import culprit


class Rows:
    """A source with these slices."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.steps: list[int] = []

    def read(self, name: str, /, **params: Any) -> pa.Table:
        assert name == "diagnosis_slices"
        self.steps = params["steps"]
        return pa.Table.from_pylist([row for row in self.rows if row["step"] in self.steps])


def slices(step: int, k3: float, n: int = 10, **kind: Any) -> dict[str, Any]:
    return {"step": step, "replica": "a", "cached": None, "in_flight": None, "lag": None, "n": n, "k3": k3 * n, **kind}


def document(cause: str, **evidence: Any) -> dict[str, Any]:
    finding = {
        "cause": cause,
        "layer": "inference_path",
        "confidence": 0.9,
        "evidence": evidence,
        "since_step": 1,
        "vetoes": True,
        "urgency": "act",
        "accepted": None,
    }
    return {
        "verdict": "critical", "findings": [finding], "correction": {"advice": "do_not_enable"},
        "level": {"expected": {"high": 2e-3}}, "growth": {"baseline": 1e-4, "verdict": "healthy"},
    }  # fmt: skip


def test_affected_tokens_beside_the_others() -> None:
    rows = [slices(0, 1e-3, cached=True), slices(0, 1e-6, cached=False), slices(1, 2e-3, cached=True), slices(1, 9.0)]
    shown = culprit.read(Rows(rows), "r", document("stale_prefix_cache"), [0, 1])
    assert shown is not None
    assert shown.lines == {
        "requests with cached prompt tokens": [(0, pytest.approx(1e-3)), (1, pytest.approx(2e-3))],
        "requests without": [(0, pytest.approx(1e-6)), (1, None)],  # unknown ones are neither
    }
    assert (shown.limit, shown.limit_name, shown.since, shown.sampled) == (2e-3, "most that is normal", 1, False)


def test_the_replica_that_the_finding_names() -> None:
    rows = [slices(0, 1e-2, replica="b"), slices(0, 1e-5), slices(0, 3e-5, replica="c")]
    shown = culprit.read(Rows(rows), "r", document("replica_divergence", replica="b"), [0])
    assert shown is not None
    assert shown.lines == {"replica b": [(0, pytest.approx(1e-2))], "other replicas": [(0, pytest.approx(2e-5))]}


def test_lag_zero_is_not_older() -> None:
    rows = [slices(0, 1e-2, lag=3), slices(0, 1e-5, lag=0), slices(0, 5.0)]
    shown = culprit.read(Rows(rows), "r", document("staleness"), [0])
    assert shown is not None
    assert [points[0][1] for points in shown.lines.values()] == [pytest.approx(1e-2), pytest.approx(1e-5)]


def test_all_tokens_where_they_are_concerned_alike_or_nothing_tells_them_apart() -> None:
    rows = [slices(0, 1e-2, n=10), slices(0, 4e-2, n=20, replica="b")]
    for cause in ("raw_logprobs", "staleness"):
        shown = culprit.read(Rows(rows), "r", document(cause), [0])
        assert shown is not None
        assert shown.lines == {"all tokens": [(0, pytest.approx(3e-2))]}
    shown = culprit.read(Rows(rows), "r", document("late_growth"), [0])
    assert shown is not None
    assert (shown.limit, shown.limit_name) == (1e-4, "baseline")
    grown = {**document("staleness"), "growth": {"baseline": 3e-4, "verdict": "growing"}}
    shown = culprit.read(Rows(rows), "r", grown, [0])
    assert shown is not None
    assert (shown.limit, shown.limit_name) == (3e-4, "baseline")  # as the banner measures it


def test_no_picture_of_tokens_in_no_mean_or_of_nothing() -> None:
    assert culprit.read(Rows([]), "r", document("missing_logprobs"), [0]) is None
    assert culprit.read(Rows([]), "r", document("staleness"), []) is None
    assert culprit.read(Rows([]), "r", {**document("staleness"), "verdict": "healthy"}, [0]) is None


def test_a_long_run_is_read_in_part() -> None:
    rows = Rows([slices(step, 1e-3) for step in range(0, 5000, 5)])
    shown = culprit.read(rows, "r", document("raw_logprobs"), list(range(0, 5000, 5)))
    assert shown is not None
    assert shown.sampled
    assert (len(rows.steps), rows.steps[0], rows.steps[-1]) == (200, 0, 4995)
