"""One bad value stops one run at most: extremes of every numeric column, each in a run of its own, beside a healthy run.

All jobs of the service are given a home with some 140 such runs. None may fail for the healthy one, which is computed,
diagnosed, alerted and controlled as if it were alone; and what is left out is counted, or named in a job's progress.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from segments import records, sampled, trained

from logprobe.alerts.controller.job import Controller
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.collectors import Recorder
from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.service import scrape
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.freezing import StoreBudget
from logprobe.monitor.store.store import Store

HIGH = (Threshold.model_validate({"name": "high", "metric": "k3_kl", "above": 1}),)
HEALTHY = "healthy"
STEPS, SEQUENCES, TOKENS = 6, 4, 12
BEGAN = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
EXTREME_FLOATS = (float("nan"), float("inf"), -1.7e308)
HUGE = "x" * 200_000


def rows_of(kind: str, step: int) -> list[dict[str, Any]]:
    """What an ordinary run records of one kind in a step."""
    time = BEGAN + timedelta(seconds=10 * step)
    names = [f"{step}-{index}" for index in range(SEQUENCES if kind in {"training", "rollout", "statistics"} else 1)]
    return [{**_ROWS[kind](name, step, time), "time": time} for name in names]


def _training(name: str, step: int, _: datetime) -> dict[str, Any]:
    row = trained(name, step, TOKENS)
    t, r = row["trainer_logprobs"], row["rollout_logprobs"]
    span = {"start": 0, "end": TOKENS, "sampled_start": 0, "sampled_end": TOKENS, "version": str(step)}
    return row | {
        "group_id": f"g{step}", "current_logprobs": t, "entropy": [1.0] * TOKENS, "advantages": [0.5] * TOKENS,
        "reward": 0.5, "weight_version": str(step), "reference_logprobs": t, "teacher_logprobs": r,
        "tags": [("env", "math")], "routes": [1] * TOKENS, "rollout_versions": [span],
    }  # fmt: skip


def _rollout(name: str, step: int, time: datetime) -> dict[str, Any]:
    moment = int(time.timestamp() * 1e6)
    return sampled(name, TOKENS, version=str(step)) | {
        "replica": "0", "prompt_length": 5, "cached_prefix_tokens": 0, "finish_reason": "stop", "adapter_id": 1,
        "step_times": [moment] * TOKENS, "routes": [1] * TOKENS, "machine": "m", "clock_offset": 0, "engine_started": 0,
        "decisions": [{"end": TOKENS, "at": moment, "first": moment, "last": moment}],
    }  # fmt: skip


def _step(_: str, step: int, __: datetime) -> dict[str, Any]:
    return {"step": step, "rank": 0, "scalars": [("grad_norm", 1.0), ("reward", 0.5)]}


def _weights(_: str, step: int, time: datetime) -> dict[str, Any]:
    times = dict.fromkeys(("requested_at", "started_at", "applied_at", "resumed_at"), time)
    return {
        "version": str(step), "step": step, "source": "trainer", "replica": "0", "tensors": 7, "machine": "m",
        "moment": int(time.timestamp() * 1e6), "tensor_hashes": [1, 2], "fingerprint": "0" * 16, "worker": "0", **times,
    }  # fmt: skip


def _health(_: str, step: int, __: datetime) -> dict[str, Any]:
    counts = dict.fromkeys(("count", "sequences", "tokens"), 1)
    words = {"component": "recorder", "event": "dropped", "severity": "warning", "message": "m"}
    return {"step": step, **words, **counts}


def _statistics(name: str, step: int, _: datetime) -> dict[str, Any]:
    row = trained(name, step, TOKENS)
    sides = (np.array(row[side], np.float32) for side in ("rollout_logprobs", "trainer_logprobs"))
    found = sequence_statistics(*sides, np.ones(TOKENS, bool), np.array([0, TOKENS]))
    return {
        "step": step, "rank": 0, "sample_id": f"s{name}", "n_total": TOKENS, "n_expected": TOKENS, "reward": 0.5,
        "advantage_abs_sum": 1.0, "entropy_sum": 1.0, "entropy_n": TOKENS, "weight_version": str(step), "token_hash": 7,
        "backend": {column: values[0].item() for column, values in found.items()},
    }  # fmt: skip


_ROWS = {
    "training": _training, "rollout": _rollout, "step": _step, "weights": _weights, "health": _health, "statistics": _statistics,
}  # fmt: skip


def odd_tables() -> Iterator[tuple[str, str, pa.Table]]:
    """Run → kind and rows of a step: an ordinary one, and one with each extreme of one place."""
    for kind in _ROWS:
        row = rows_of(kind, 3)[-1]
        for path, extremes in _places(SCHEMAS[kind], row):
            rows = [row, *(_with(row, path, value) for value in extremes)]
            if "sample_id" in row and path != ("sample_id",):
                rows = [{**each, "sample_id": f"3-{index}"} for index, each in enumerate(rows)]
            yield f"{kind} {'.'.join(map(str, path))}", kind, table_of(kind, rows)


def table_of(kind: str, rows: list[dict[str, Any]]) -> pa.Table:
    """As `records`, also with times that no `datetime` can be."""
    columns = [_column([row.get(each.name) for row in rows], each.type) for each in SCHEMAS[kind]]
    return pa.Table.from_arrays(columns, schema=SCHEMAS[kind])


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(kind):
        return pa.array(values, kind)
    micros = [int(value.timestamp() * 1e6) if isinstance(value, datetime) else value for value in values]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us")).cast(kind)


def _places(schema: pa.Schema, row: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    for each in schema:
        yield from _within((each.name,), each.type, row.get(each.name))


def _within(path: tuple[Any, ...], kind: pa.DataType, value: Any) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Places of a value, each with its extremes."""
    if value is None:
        return
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        bits = 64 if pa.types.is_timestamp(kind) else kind.bit_width
        yield path, [0, (1 << bits) - 1] if str(kind).startswith("u") else [-(1 << bits - 1), (1 << bits - 1) - 1]
    elif pa.types.is_floating(kind):
        yield path, list(EXTREME_FLOATS) if kind.bit_width == 64 else [*EXTREME_FLOATS[:2], -3.4e38]
    elif pa.types.is_string(kind):
        yield path, [HUGE]
    elif pa.types.is_map(kind):
        name, one = value[0]
        odd = [[(name, HUGE)], [("", "")]] if isinstance(one, str) else [[(name, x)] for x in EXTREME_FLOATS]
        yield path, [*odd, [(HUGE, one)], []]
    elif pa.types.is_list(kind):
        yield from _within((*path, 0), kind.value_type, value[0])
        yield path, [[]]
    elif pa.types.is_struct(kind):
        for each in kind:
            yield from _within((*path, each.name), each.type, value[each.name])


def _with(row: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = list(row) if isinstance(row, list) else dict(row)
    copy[path[0]] = _with(row[path[0]], path[1:], value)
    return copy


def write(home: Path, run: str, kind: str, table: pa.Table, writer: str = "w") -> None:
    SpoolWriter(home, run, writer).write(kind, table)


def ordinary(home: Path, run: str, steps: int = STEPS) -> None:
    for kind in ("weights", "rollout", "training", "step", "health"):
        write(home, run, kind, records(kind, *(row for step in range(steps) for row in rows_of(kind, step))))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow, as they are meant to
def test_extremes_of_every_column_stop_one_run_at_most(home: Path) -> None:
    ordinary(home, HEALTHY)
    for run, kind, table in odd_tables():
        write(home, run, kind, table)
        for other in {"rollout", "training", "step"} - {kind}:
            write(home, run, other, records(other, *rows_of(other, 3)), "others")
    with Store.open(Home(home)) as store:
        pipeline = Pipeline(store, threading.Event(), budget=StoreBudget(1), armed=HEALTHY.__eq__)
        watch = Watch(store, lambda: HIGH, threading.Event(), quiet=timedelta(0))
        controller = Controller(store, lambda _: Policy(mode=Mode.ARMED))
        jobs = {
            "ingest": lambda: pipeline.ingest(lambda _: None),
            "profiles": pipeline.profile,
            "diagnosis": pipeline.diagnose,
            "alerts": watch.run_once,
            "controller": controller.run_once,
            "retention": pipeline.retain,
            "freezing": pipeline.freeze,
            "metrics": lambda: {"text": scrape.exposition(store, [], stuck=0)},
        }
        turns = {"diagnosis": 1, "alerts": 4}  # one tick of the runs that are not armed: it takes long
        failed, problems = {}, {}
        for name, work in jobs.items():
            try:
                for _ in range(turns.get(name, 20)):
                    report = work()
                    if not report.get("runs") and not report.get("remaining"):
                        break
                problems[name] = report.get("problem")
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
        problems["freezing"] = None  # its budget is nothing
        assert failed == {}
        assert {name: problem for name, problem in problems.items() if problem} == {}
        assert _steps(store) == STEPS
        assert store.read("diagnosis_latest", run=HEALTHY)["step"].to_pylist() == [STEPS - 1]
        assert controller._seen[HEALTHY]


def _steps(store: Store) -> int:
    measured = "SELECT step FROM metrics WHERE run = ? AND metric = 'backend.k3_kl' AND value IS NOT NULL"
    return store.query(measured, [HEALTHY]).num_rows


NO_STEPS = (2**63, -(2**63) - 1, 2**53 + 1, -(2**63), 2**63 - 1)  # the last: what NaN becomes as a whole number


def test_the_recorder_refuses_a_step_that_no_record_can_hold(home: Path) -> None:
    with Recorder(home, HEALTHY) as recorder:
        for step in NO_STEPS:
            assert not recorder.step(step, {"loss": 1.0})
        assert not recorder.weights(1, step=2**70)
        assert recorder.report("odd", "numbers from elsewhere", step=2**64, tokens=2**64)
        assert recorder.step(1, {"loss": 1.0})
    assert recorder.health["dropped"]["bad_input"]["calls"] == len(NO_STEPS) + 1
