"""One bad value stops one run at most: extremes of every numeric column, each in a run of its own, beside a healthy run.

All jobs of the service are given a home with some two hundred such runs. None may fail for the healthy one, which is computed,
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
from segments import records

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
    rng = np.random.default_rng(step)
    time = BEGAN + timedelta(seconds=10 * step)
    found = []
    for index in range(SEQUENCES if kind in {"training", "rollout", "statistics"} else 1):
        r = -rng.exponential(1.0, TOKENS) - 0.01
        t = np.minimum(r + rng.normal(0, 0.02, TOKENS), -1e-3)
        found.append(_ROWS[kind](f"{step}-{index}", step, time, r.astype(np.float32), t.astype(np.float32)))
    return found


def _training(name: str, step: int, time: datetime, r: np.ndarray, t: np.ndarray) -> dict[str, Any]:
    return {
        "time": time, "step": step, "rank": 0, "sample_id": name, "group_id": f"g{step}", "token_ids": list(range(TOKENS)),
        "mask": [True] * TOKENS, "rollout_logprobs": r.tolist(), "trainer_logprobs": t.tolist(), "current_logprobs": t.tolist(),
        "entropy": [1.0] * TOKENS, "advantages": [0.5] * TOKENS, "reward": 0.5, "weight_version": str(step),
        "reference_logprobs": t.tolist(), "teacher_logprobs": r.tolist(), "tags": [("env", "math")], "routes": [1] * TOKENS,
        "rollout_versions": [{"start": 0, "end": TOKENS, "sampled_start": 0, "sampled_end": TOKENS, "version": str(step)}],
    }  # fmt: skip


def _rollout(name: str, step: int, time: datetime, r: np.ndarray, _: np.ndarray) -> dict[str, Any]:
    moment = int(time.timestamp() * 1e6)
    return {
        "time": time, "sample_id": name, "replica": "0", "token_ids": list(range(TOKENS)), "logprobs": r.tolist(),
        "spans": [{"start": 0, "end": TOKENS, "version": str(step)}], "prompt_length": 5, "cached_prefix_tokens": 0,
        "finish_reason": "stop", "adapter_id": 1, "step_times": [moment] * TOKENS, "routes": [1] * TOKENS,
        "decisions": [{"end": TOKENS, "at": moment, "first": moment, "last": moment}], "machine": "m", "clock_offset": 0, "engine_started": 0,
    }  # fmt: skip


def _step(_: str, step: int, time: datetime, *__: np.ndarray) -> dict[str, Any]:
    return {"time": time, "step": step, "rank": 0, "scalars": [("grad_norm", 1.0), ("reward", 0.5)]}


def _weights(_: str, step: int, time: datetime, *__: np.ndarray) -> dict[str, Any]:
    times = dict.fromkeys(("requested_at", "started_at", "applied_at", "resumed_at"), time)
    moment = int(time.timestamp() * 1e6)
    return {
        "time": time, "version": str(step), "step": step, "source": "trainer", "replica": "0", "tensors": 7, "moment": moment,
        "machine": "m", "tensor_hashes": [1, 2], "fingerprint": "0" * 16, "worker": "0", **times,
    }  # fmt: skip


def _health(_: str, step: int, time: datetime, *__: np.ndarray) -> dict[str, Any]:
    counts = dict.fromkeys(("count", "sequences", "tokens"), 1)
    return {
        "time": time,
        "component": "recorder",
        "event": "dropped",
        "severity": "warning",
        "message": "m",
        "step": step,
        **counts,
    }


def _statistics(name: str, step: int, time: datetime, r: np.ndarray, t: np.ndarray) -> dict[str, Any]:
    offsets = np.array([0, TOKENS])
    found = sequence_statistics(r, t, np.ones(TOKENS, bool), offsets)
    pair = {column: values[0].item() for column, values in found.items()}
    return {
        "time": time, "step": step, "rank": 0, "sample_id": f"s{name}", "n_total": TOKENS, "n_expected": TOKENS, "reward": 0.5,
        "advantage_abs_sum": 1.0, "entropy_sum": 1.0, "entropy_n": TOKENS, "weight_version": str(step), "token_hash": 7,
        "backend": pair,
    }  # fmt: skip


_ROWS = {
    "training": _training, "rollout": _rollout, "step": _step, "weights": _weights, "health": _health, "statistics": _statistics,
}  # fmt: skip


def odd_tables() -> Iterator[tuple[str, str, pa.Table]]:
    """Run → kind and rows: those of a step, the second of which has an extreme value somewhere."""
    for kind in _ROWS:
        ordinary = rows_of(kind, 3)
        for path, odd in _places(SCHEMAS[kind], ordinary[-1]):
            for name, value in odd:
                row = _with(ordinary[-1], path, value)
                fields = [each.with_nullable(True) for each in SCHEMAS[kind]]
                yield f"{kind} {'.'.join(map(str, path))} {name}", kind, records_of(kind, [*ordinary[:-1], row], fields)


def records_of(kind: str, rows: list[dict[str, Any]], fields: list[pa.Field]) -> pa.Table:
    """As `records`, also with times that no `datetime` can be."""
    columns = [_column([row.get(each.name) for row in rows], each.type) for each in fields]
    return pa.Table.from_arrays(columns, schema=SCHEMAS[kind])


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(kind):
        return pa.array(values, kind)
    micros = [int(value.timestamp() * 1e6) if isinstance(value, datetime) else value for value in values]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us")).cast(kind)


def _places(schema: pa.Schema, row: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], list[tuple[str, Any]]]]:
    for each in schema:
        yield from _within((each.name,), each.type, row.get(each.name))


def _within(path: tuple[Any, ...], kind: pa.DataType, value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if value is None:
        return
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        bits = 64 if pa.types.is_timestamp(kind) else kind.bit_width
        signed = not str(kind).startswith("u")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        yield path, [("smallest", low), ("largest", high)]
    elif pa.types.is_floating(kind):
        found = EXTREME_FLOATS if kind.bit_width == 64 else (*EXTREME_FLOATS[:2], -3.4e38)
        yield path, [(str(number), number) for number in found]
    elif pa.types.is_string(kind):
        yield path, [("huge", HUGE)]
    elif pa.types.is_map(kind):
        name, number = value[0]
        if not isinstance(number, str):
            yield path, [(str(odd), [(name, odd)]) for odd in EXTREME_FLOATS] + [("huge", [(HUGE, 1.0)]), ("empty", [])]
        else:
            yield path, [("huge", [(name, HUGE)]), ("empty", [("", "")])]
    elif pa.types.is_list(kind):
        yield from _within((*path, 0), kind.value_type, value[0])
        yield path, [("empty", [])]
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


@pytest.fixture(scope="module")
def odd_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spools of the healthy run and of all odd ones."""
    home = tmp_path_factory.mktemp("odd") / "home"
    ordinary(home, HEALTHY)
    for run, kind, table in odd_tables():
        write(home, run, kind, table)
        others = [each for each in ("rollout", "training", "step") if each != kind]
        for each in others:
            write(home, run, each, records(each, *rows_of(each, 3)), "others")
    return home


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow, as they are meant to
def test_extremes_of_every_column_stop_one_run_at_most(odd_home: Path) -> None:
    with Store.open(Home(odd_home)) as store:
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
        failed, problems = {}, {}
        for name, work in jobs.items():
            try:
                for _ in range(
                    {"diagnosis": 1, "alerts": 4}.get(name, 20)
                ):  # one tick of the diagnoses of runs that are not armed: it takes long
                    report = work()
                    if not report.get("runs") and not report.get("remaining"):
                        break
                problems[name] = report.get("problem")
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
        problems["freezing"] = None  # its budget is nothing
        print(failed, {name: str(problem)[:2000] for name, problem in problems.items() if problem})
        assert failed == {}
        assert {name: problem for name, problem in problems.items() if problem} == {}
        assert _steps(store) == STEPS
        assert store.read("diagnosis_latest", run=HEALTHY)["step"].to_pylist() == [STEPS - 1]
        assert controller._seen[HEALTHY]


def _steps(store: Store) -> int:
    measured = "SELECT step FROM metrics WHERE run = ? AND metric = 'backend.k3_kl' AND value IS NOT NULL"
    return store.query(measured, [HEALTHY]).num_rows


def test_a_step_that_an_older_service_stored_stops_one_run_at_most(home: Path) -> None:
    """NaN as an integer: it made every statement of alerts, diagnosis and controller overflow, for all runs and for good."""
    ordinary(home, HEALTHY)
    ordinary(home, "broken")
    with Store.open(Home(home)) as store:
        pipeline = Pipeline(store, threading.Event())
        pipeline.ingest(lambda _: None)
        with store.transaction() as cursor:
            for table in ("step_summaries", "step_metrics", "all_sequences", "all_statistics"):
                cursor.execute(f"UPDATE {table} SET step = ? WHERE run = 'broken' AND step = 0", [-(1 << 63)])
        watch = Watch(store, lambda: HIGH, threading.Event(), quiet=timedelta(0))
        controller = Controller(store, lambda _: Policy(mode=Mode.ARMED))
        reports = {
            work.__qualname__: work()
            for work in (
                pipeline.diagnose,
                watch.run_once,
                controller.run_once,
                pipeline.profile,
            )
        }
        assert store.read("diagnosis_latest", run=HEALTHY)["step"].to_pylist() == [STEPS - 1]
        assert controller._seen[HEALTHY]
        problems = [report["problem"] for report in reports.values() if "problem" in report]
        assert all(problem.startswith("broken: ") for problem in problems)


def test_the_recorder_refuses_a_step_that_no_record_can_hold(home: Path) -> None:
    with Recorder(home, HEALTHY) as recorder:
        assert not recorder.step(-(1 << 63), {"loss": 1.0})
        assert recorder.step(1, {"loss": 1.0})
    assert recorder.health["dropped"]["bad_input"]["calls"] == 1
