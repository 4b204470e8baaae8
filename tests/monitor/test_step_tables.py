"""Steps computed from the tables of a real store, as those that were folded and recomputed ones are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from store_work import compute_again

from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.monitor import metrics
from logprobe.monitor.analysis import step_tables
from logprobe.monitor.live.store import Within
from logprobe.monitor.live.writing import write_stored
from logprobe.monitor.store.store import Store

STEPS = (
    "SELECT DISTINCT run, step FROM training_sequences UNION SELECT DISTINCT run, step FROM step_records ORDER BY ALL"
)
NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
Sequences = list[tuple[list[float], list[float]]]  # (rollout, trainer) log-probs


class Job:
    """Computes all steps of a store again."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run_once(self) -> None:
        steps = [(row["run"], row["step"]) for row in self._store.query(STEPS).to_pylist()]
        with self._store.transaction() as cursor:
            write_stored(Within(self._store, cursor), steps, NOW)


@pytest.fixture
def job(store: Store) -> Job:
    return Job(store)


def sequences_of(seed: int, count: int = 4) -> Sequences:
    rng = np.random.default_rng(seed)
    rollout = [-rng.exponential(1.0, n) - 0.01 for n in rng.integers(3, 20, count)]
    return [(r.tolist(), (r - rng.exponential(0.05, len(r))).tolist()) for r in rollout]


def insert(cursor: Any, table: str, rows: list[dict[str, Any]] | pa.Table) -> None:
    cursor.register("new_rows", rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows))
    cursor.execute(f"INSERT INTO {table} BY NAME SELECT * FROM new_rows")
    cursor.unregister("new_rows")


def add(
    store: Store,
    step: int,
    sequences: Sequences,
    *,
    run: str = "run",
    segment: str = "s0",
    rollouts: list[dict[str, Any]] | None = None,
    **columns: Any,
) -> None:
    """What ingest commits for one training segment."""
    lengths = [len(r) for r, _ in sequences]
    keys = keys_of(run, step, segment, len(sequences))
    trained = [
        {
            **key,
            "sample_id": f"{step}-{key['row']}",
            "n_total": n,
            "n_expected": n,
            "rollout_source": "received",
            "raw_kept": False,
            "time": NOW + timedelta(seconds=step),
            "rollout_segment": key["segment_id"] if rollouts else None,
            "rollout_row": key["row"] if rollouts else None,
            **columns,
        }
        for key, n in zip(keys, lengths, strict=True)
    ]
    with store.transaction() as cursor:
        insert(cursor, "training_sequences", trained)
        insert(cursor, "statistics", statistics_of(keys, "backend", sequences))
        if rollouts:
            fixed = {"n_logprobs": 0, "run": run, "segment_id": f"{segment}/{step}"}
            insert(
                cursor,
                "rollout_sequences",
                [{**fixed, "row": i, "sample_id": f"{step}-{i}", **row} for i, row in enumerate(rollouts)],
            )


def keys_of(run: str, step: int, segment: str, count: int) -> list[dict[str, Any]]:
    return [{"run": run, "step": step, "segment_id": f"{segment}/{step}", "row": i} for i in range(count)]


def statistics_of(keys: list[dict[str, Any]], pair: str, sequences: Sequences) -> pa.Table:
    flat = [np.concatenate([sides[i] for sides in sequences]) for i in (0, 1)]
    columns = sequence_statistics(*flat, None, np.cumsum([0, *(len(first) for first, _ in sequences)]))
    return pa.table({**{k: [key[k] for key in keys] for k in keys[0]}, "pair": [pair] * len(keys), **columns})


def add_pair(store: Store, step: int, pair: str, sequences: Sequences) -> None:
    with store.transaction() as cursor:
        insert(cursor, "statistics", statistics_of(keys_of("run", step, "s0", len(sequences)), pair, sequences))


def stored(store: Store, step: int, run: str = "run") -> dict[str, float | None]:
    table = store.query("SELECT metric, value FROM step_metrics WHERE run = ? AND step = ?", [run, step])
    names = table["metric"].to_pylist()
    assert len(set(names)) == len(names)
    return dict(zip(names, table["value"].to_pylist(), strict=True))


def one(store: Store, sql: str) -> Any:
    return store.query(sql).to_pylist()[0]


def computed(sequences: Sequences) -> dict[str, float | None]:
    return metrics.compute([r for r, _ in sequences], [t for _, t in sequences])


def test_the_job_stores_what_compute_computes(store: Store, job: Job) -> None:
    steps = {step: sequences_of(step) for step in (3, 4, 9)}
    for step, sequences in steps.items():
        add(store, step, sequences)
    job.run_once()
    for step, sequences in steps.items():
        values, expected = stored(store, step), computed(sequences)
        assert set(values) == set(metrics.KEYS)
        for key, value in expected.items():
            # There is no rollout record to compare with
            if key not in (
                "length_mismatch_frac",
                "unknown_version_frac",
            ):
                assert values[key] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), key


def test_runs_computed_together_have_the_numbers_they_have_alone(store: Store, job: Job) -> None:
    labels = {"numbers": ["7", "9"], "names": ["9", "blue"], "other names": ["blue", "9"]}

    def records(run: str, seconds: int) -> list[dict[str, Any]]:
        shared = {"run": run, "source": "trainer"}
        return [
            shared | {"version": version, "step": row, "applied_at": NOW + timedelta(seconds=seconds * row)}
            for row, version in enumerate(labels[run])
        ]

    def bring(run: str, seed: int) -> None:
        for step in (3, 4 + seed):
            sequences = sequences_of(10 * seed + step)
            spans = [{"start": 0, "end": len(r), "version": labels[run][0]} for r, _ in sequences]
            rollouts = [{"n_tokens": len(r), "spans": [span]} for (r, _), span in zip(sequences, spans, strict=True)]
            add(store, step, sequences, run=run, rollouts=rollouts, weight_version=labels[run][1], segment=run)
        with store.transaction() as cursor:
            insert(cursor, "weight_records", records(run, seconds=60 * seed))

    for seed, run in enumerate(labels, 1):
        bring(run, seed)
    job.run_once()
    together = store.query("SELECT * FROM step_metrics ORDER BY ALL")
    for run in labels:  # once more, each by itself
        compute_again(store, f"SELECT run, step FROM step_summaries WHERE run = '{run}' ORDER BY ALL")
    assert store.query("SELECT * FROM step_metrics ORDER BY ALL").equals(together)
    seconds = {run: stored(store, 3, run)["weight_lag_seconds_mean"] for run in labels}
    assert seconds == {"numbers": 60.0, "names": 120.0, "other names": 180.0}


def test_all_three_pairs_are_computed(store: Store, job: Job) -> None:
    sequences = sequences_of(1)
    current = [[t - 0.01 * i for i, t in enumerate(trainer)] for _, trainer in sequences]
    add(store, 1, sequences)
    add_pair(store, 1, "update", [(t, c) for (_, t), c in zip(sequences, current, strict=True)])
    add_pair(store, 1, "total", [(r, c) for (r, _), c in zip(sequences, current, strict=True)])
    job.run_once()
    values = stored(store, 1)
    expected = metrics.compute([r for r, _ in sequences], [t for _, t in sequences], current_logprobs=current)
    for key in (
        "backend.k3_kl",
        "update.k3_kl",
        "total.k3_kl",
        "update.coverage",
        "total.kl_new_old",
        "total.training_ppl",
    ):
        assert values[key] == pytest.approx(expected[key], rel=1e-12), key


def test_the_summary_counts_what_it_is_made_of(store: Store, job: Job) -> None:
    sequences = sequences_of(1)
    add(store, 5, sequences)
    job.run_once()
    summary = one(store, "SELECT tokens, sequences, time, computed_at, revision FROM step_summaries")
    assert summary["tokens"] == sum(len(r) for r, _ in sequences)
    assert summary["sequences"] == 4
    assert summary["time"] == NOW + timedelta(seconds=5)
    assert summary["computed_at"] == NOW


def test_late_data_is_counted_in(store: Store, job: Job) -> None:
    early, late = sequences_of(1), sequences_of(2)
    add(store, 5, early)
    add(store, 6, early)
    job.run_once()
    before = one(store, "SELECT revision FROM step_summaries WHERE step = 5")["revision"]
    add(store, 5, late, segment="s1")
    job.run_once()
    assert stored(store, 5)["backend.k3_kl"] == pytest.approx(computed(early + late)["backend.k3_kl"], rel=1e-12)
    assert stored(store, 6)["backend.k3_kl"] == pytest.approx(computed(early)["backend.k3_kl"], rel=1e-12)
    assert one(store, "SELECT revision FROM step_summaries WHERE step = 5")["revision"] > before
    assert one(store, "SELECT count(*) AS n FROM step_summaries")["n"] == 2


def test_weight_lag_counts_tokens(store: Store, job: Job) -> None:
    sequences: Sequences = [([-1.0] * 10, [-1.0] * 10)] * 3
    rollouts = [
        {"n_tokens": 10, "spans": [span(0, 10, "7")]},
        {"n_tokens": 10, "spans": [span(0, 6, "7"), span(6, 10, "9")]},
        {"n_tokens": 10, "spans": [span(0, 5, "8"), span(5, 10, None)]},
    ]
    add(store, 9, sequences, rollouts=rollouts, weight_version="10")
    job.run_once()
    values = stored(store, 9)
    assert values["weight_lag_mean"] == pytest.approx((16 * 3 + 4 * 1 + 5 * 2) / 25)
    assert (values["weight_lag_max"], values["weight_lag_min"]) == (3, 1)
    assert values["weight_lag_newest"] == pytest.approx((3 + 1 + 2) / 3)
    assert values["mixed_version_frac"] == pytest.approx(1 / 3)
    assert values["unknown_version_frac"] == pytest.approx(5 / 30)
    assert values["weight_lag_steps_mean"] is None
    assert values["weight_lag_seconds_mean"] is None


def span(start: int, end: int, version: str | None) -> dict[str, Any]:
    return {"start": start, "end": end, "version": version}


def test_weight_records_order_names_and_give_steps_and_seconds(store: Store, job: Job) -> None:
    known = {"n_tokens": 3, "spans": [span(0, 2, "ckpt-blue"), span(2, 3, "ckpt-red")]}
    stranger = {"n_tokens": 4, "spans": [*known["spans"], span(3, 4, "who?")]}
    with store.transaction() as cursor:
        for name, step, seconds, source in (
            ("ckpt-red", 40, 60, "trainer"),
            ("ckpt-blue", 20, 0, "trainer"),
            ("ckpt-blue", None, 5, "engine"),
            ("ckpt-green", 60, 180, "trainer"),
        ):
            time = NOW + timedelta(seconds=seconds)
            row = {"run": "run", "version": name, "step": step, "time": time, "source": source}
            insert(cursor, "weight_records", [row])
    add(store, 60, [([-1.0] * 3, [-1.1] * 3)], rollouts=[known], weight_version="ckpt-green")
    add(store, 61, [([-1.0] * 4, [-1.1] * 4)], rollouts=[stranger], weight_version="ckpt-green")
    job.run_once()
    values = stored(store, 60)
    assert values["weight_lag_mean"] == pytest.approx((2 * 2 + 1) / 3)
    assert values["weight_lag_steps_mean"] == pytest.approx((2 * 40 + 20) / 3)
    assert values["weight_lag_seconds_mean"] == pytest.approx((2 * 180 + 120) / 3)
    assert values["unknown_version_frac"] == 0.0
    # "who?" is a version; only its age is unknown, and with it that of the step.
    strange = stored(store, 61)
    assert strange["unknown_version_frac"] == 0.0
    assert {value for key, value in strange.items() if key.startswith("weight_lag")} == {None}


def test_a_version_without_a_step_is_not_left_out_of_the_lag_in_steps(store: Store, job: Job) -> None:
    """The weights a run starts from are no step's result. Half of the tokens from them, half from the newest: not lag 0."""
    rollouts = [{"n_tokens": 4, "spans": [span(0, 2, "0"), span(2, 4, "1")]}]
    with store.transaction() as cursor:
        for version, step in (("0", None), ("1", 0)):
            time = NOW + timedelta(seconds=int(version))
            row = {"run": "run", "version": version, "step": step, "time": time, "source": "trainer"}
            insert(cursor, "weight_records", [row])
    add(store, 1, [([-1.0] * 4, [-1.1] * 4)], rollouts=rollouts, weight_version="1")
    job.run_once()
    values = stored(store, 1)
    assert values["weight_lag_mean"] == pytest.approx(0.5)
    assert values["weight_lag_seconds_mean"] == pytest.approx(0.5)
    assert values["weight_lag_steps_mean"] is None
    assert values["weight_lag_steps_newest"] is None


def test_an_unknown_version_has_no_lag(store: Store, job: Job) -> None:
    sequences: Sequences = [([-1.0] * 4, [-1.1] * 4)]
    add(store, 1, sequences)
    add(store, 2, sequences, rollouts=[{"n_tokens": 4, "spans": None}], weight_version="3")
    add(store, 3, sequences, rollouts=[{"n_tokens": 4, "spans": [span(0, 4, "3")]}])
    job.run_once()
    lags = [key for key in metrics.KEYS if key.startswith("weight_lag")]
    for step, unknown in ((1, 1.0), (2, 1.0), (3, 0.0)):
        values = stored(store, step)
        assert {key: values[key] for key in lags} == dict.fromkeys(lags), step
        assert values["unknown_version_frac"] == unknown
    assert [stored(store, step)["mixed_version_frac"] for step in (1, 2, 3)] == [None, None, 0.0]


def test_spans_beyond_the_tokens_and_gaps_between_them(store: Store, job: Job) -> None:
    rollouts = [{"n_tokens": 10, "spans": [span(-2, 4, "1"), span(6, 99, "2")]}]
    add(store, 3, [([-1.0] * 10, [-1.1] * 10)], rollouts=rollouts, weight_version="3")
    job.run_once()
    values = stored(store, 3)
    assert values["weight_lag_mean"] == pytest.approx((4 * 2 + 4 * 1) / 8)
    assert values["unknown_version_frac"] == pytest.approx(0.2)


def test_spans_that_cover_all_tokens_are_counted_as_the_statement_counts_them(store: Store) -> None:
    rng = np.random.default_rng(3)
    versions = [None, "1", "2", "10", "x"]
    chosen = pa.table({"run": ["a", "b", "b"], "step": [1, 1, 2], "place": [0, 1, 2]})
    for number, (run, step) in enumerate([("a", 1), ("b", 1), ("b", 2), ("b", 1), ("a", 1)]):
        lengths, picked = rng.integers(1, 6, 6).tolist(), [versions[i] for i in rng.integers(0, 5, 6)]
        rollouts = [
            {"n_tokens": n, "spans": [span(0, n + 1, version)] if version else [[], None][n % 2]}
            for n, version in zip(lengths, picked, strict=True)
        ]
        rollouts[0] |= {"n_tokens": 0, "spans": [span(0, 0, "1")]}
        sequences = [([-1.0] * n, [-1.1] * n) for n in lengths]
        trainer = versions[number]
        add(store, step, sequences, run=run, segment=f"s{number}", rollouts=rollouts, weight_version=trainer)
        add(store, step, sequences, run=run, segment=f"alone{number}", weight_version=trainer)
    sequences = store.read("step_sequences", chosen, **step_tables.range_of(chosen))
    assert sequences["whole"].to_pylist() == [True] * 60
    expected = store.read("step_spans", chosen, **step_tables.range_of(chosen))
    found = step_tables.whole_spans(sequences)
    assert found.schema.equals(expected.schema)
    assert found.to_pylist() == expected.to_pylist()


def test_sequences_without_a_rollout_lower_the_coverage(store: Store, job: Job) -> None:
    add(store, 1, [([-1.0] * 6, [-1.1] * 6)], token_match=True, length_match=True)
    lost = {"run": "run", "step": 1, "segment_id": "s9", "row": 0, "sample_id": "lost", "n_total": 2, "n_expected": 2}
    with store.transaction() as cursor:
        row = {**lost, "rollout_source": "unaligned", "raw_kept": False, "token_match": False, "length_match": False}
        insert(cursor, "training_sequences", [row])
    job.run_once()
    values = stored(store, 1)
    assert values["backend.coverage"] == 0.75
    assert values["backend.kl"] == pytest.approx(0.1)
    assert (values["token_mismatch_frac"], values["length_mismatch_frac"]) == (0.5, 0.5)
    assert (values["update.coverage"], values["update.k3_kl"]) == (None, None)


def test_a_step_that_has_only_scalars(store: Store, job: Job) -> None:
    with store.transaction() as cursor:
        for rank, entropy in ((0, 0.2), (1, 0.4)):
            scalars = {"loss": 1.0, "entropy": entropy, "reward": 0.5}
            cursor.execute(
                "INSERT INTO step_records (run, step, rank, time, scalars) VALUES ('run', 8, ?, ?, ?)",
                [rank, NOW, scalars],
            )
    job.run_once()
    values = stored(store, 8)
    assert values["entropy"] == pytest.approx(0.3)
    assert values["reward"] == 0.5
    assert values["backend.coverage"] is None
    assert one(store, "SELECT tokens, sequences, time FROM step_summaries") == {
        "tokens": 0,
        "sequences": 0,
        "time": NOW,
    }
    assert one(store, "SELECT value AS loss FROM scalars WHERE step = 8 AND name = 'loss'") == {"loss": 1.0}


def test_a_scalar_is_one_number_wherever_it_is_shown(store: Store, job: Job) -> None:
    """The metric and the column: both the mean over ranks, of each rank's newest value."""
    records = [(0, 1, {"entropy": 9.0, "loss": 3.0}), (0, 2, {"entropy": 0.1}), (1, 1, {"entropy": 0.3}), (2, 1, {})]
    with store.transaction() as cursor:
        for rank, minute, scalars in records:
            cursor.execute(
                "INSERT INTO step_records (run, step, rank, time, scalars) VALUES ('run', 8, ?, ?, ?)",
                [rank, NOW.replace(minute=minute), scalars],
            )
    job.run_once()
    shown = one(store, "SELECT metrics['entropy'] AS entropy, scalars FROM steps_of('run', 8, 8)")
    assert (shown["entropy"], dict(shown["scalars"])) == (
        pytest.approx(0.2),
        {"entropy": pytest.approx(0.2), "loss": 3.0},
    )
    assert one(store, "SELECT value, lowest, highest, ranks FROM scalars WHERE name = 'entropy'") == {
        "value": pytest.approx(0.2),
        "lowest": 0.1,
        "highest": 0.3,
        "ranks": 2,
    }


def test_steps_have_every_metric(store: Store, job: Job) -> None:
    sequences = sequences_of(1)
    add(store, 1, sequences)
    job.run_once()
    measured = dict(one(store, "SELECT metrics FROM steps_of('run')")["metrics"])
    assert set(measured) == set(metrics.KEYS)
    assert measured["backend.k3_kl"] == pytest.approx(computed(sequences)["backend.k3_kl"], rel=1e-12)
