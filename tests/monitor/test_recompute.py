"""`logprobe recompute`: statistics from raw tokens again, equal in every bit, with a service and without; what has no tokens is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import service
from segments import records, sampled, trained

from logprobe.app import cli
from logprobe.app.ingesting import take
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.recompute import partition, recomputing, writing
from logprobe.monitor.store.store import Store

RUN = "r"
STEPS = 8
METRICS = "SELECT step, metric, value FROM step_metrics ORDER BY step, metric"
STATISTICS = "SELECT * FROM statistics ORDER BY step, segment_id, row, pair"
SUMS = "SELECT segment_id, row, advantage_abs_sum, entropy_sum, entropy_n FROM training_sequences ORDER BY ALL"
OLDER = (  # what an earlier definition may have left
    "UPDATE statistics SET sum_k3 = sum_k3 * 1.5 + 1, n_above = 0",
    "UPDATE training_sequences SET entropy_sum = 0, advantage_abs_sum = NULL",
    "DELETE FROM statistics WHERE pair = 'update'",
)


def record(home: Path, steps: range, sequences: int = 6, longest: int = 40) -> None:
    """Every way to have r: received, joined, missing, of several requests; broken tokens, masks, three log-probs."""
    rng = np.random.default_rng(1)
    with Recorder(home, RUN, rank=0) as recorder:
        for step in steps:
            shape = (sequences, longest)
            r = -rng.exponential(0.7, shape).astype(np.float32)
            t = np.minimum(r + rng.normal(0, 0.1, shape), -1e-9).astype(np.float32)
            if step % 5 == 0:
                r[0, 0], t[1, 1] = np.nan, 0.5
            names, ids = [f"{step}-{number}" for number in range(sequences)], rng.integers(0, 1000, shape)
            assert recorder.rollout(
                sample_ids=names[1:], token_ids=ids[1:], logprobs=r[1:], lengths=[longest] * len(names[1:])
            )
            assert recorder.training(
                step=step, sample_ids=names, token_ids=ids,
                rollout_logprobs=None if step % 2 else r, trainer_logprobs=t,
                current_logprobs=t - np.float32(0.01) if step % 3 else None, mask=rng.random(shape) < 0.9,
                entropy=rng.random(shape), advantages=rng.normal(size=shape),
            )  # fmt: skip
            assert recorder.flush()


def record_turns(home: Path) -> None:
    """A sequence of two engine requests."""
    writer = SpoolWriter(home, RUN, "turns")
    mask = [True, True, False, True, True]
    writer.write(
        "training", records("training", trained("a", 3, 5, mask=mask, received=False) | {"part_ids": ["a/0", "a/1"]})
    )
    parts = [sampled("a/0", token_ids=[0, 1], n=2), sampled("a/1", token_ids=[3, 4], n=2)]
    writer.write("rollout", records("rollout", *parts))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("recompute") / "home"
    record_turns(home)
    for steps in (range(STEPS - 1), range(STEPS - 1, STEPS)):  # a raw file for each
        record(home, steps)
        take(Home(home))
    return home


@pytest.fixture
def home(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "home"))


@pytest.fixture
def many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are split, too."""
    monkeypatch.setattr(recomputing, "TOKENS_PER_PARTITION", 200)


def content(store: Store) -> list[Any]:
    return [store.query(sql).to_pylist() for sql in (METRICS, STATISTICS, SUMS)]


def changed(home: Path) -> list[Any]:
    """What a home holds; then its statistics become those of another definition."""
    with Store.open(Home(home)) as store:
        whole = content(store)
        with store.transaction() as cursor:
            for statement in OLDER:
                cursor.execute(statement)
    return whole


def stored(home: Path) -> list[Any]:
    with Store.open(Home(home), read_only=True) as store:
        return content(store)


def run(home: Path, **settings: Any) -> recomputing.Progress:
    with recomputing.writer_of(Home(home)) as writer:
        return recomputing.recompute(
            Home(home), writer, RUN, steps=settings.get("steps", (None, None)), show=lambda _: None
        )


@pytest.mark.parametrize("with_service", [False, True])
def test_every_bit_comes_back(home: Path, many_partitions: None, with_service: bool) -> None:
    whole = changed(home)
    assert "parts" in {row["joined_by"] for row in joins(home)}
    assert {"received", "joined", "missing"} <= {row["rollout_source"] for row in joins(home)}
    if with_service:
        with service(home):
            done = run(home)
    else:
        done = run(home)
    assert stored(home) == whole
    assert (done.steps, done.of_steps, done.kept) == (STEPS, STEPS, {})
    assert done.tokens == done.of_tokens
    assert not list((home / "recomputed").glob("*"))


def joins(home: Path) -> list[dict[str, Any]]:
    with Store.open(Home(home), read_only=True) as store:
        return list(store.query("SELECT joined_by, rollout_source FROM training_sequences").to_pylist())


def test_steps_without_their_tokens_are_kept_and_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(Home(home)) as store, store.transaction() as cursor:
        cursor.execute(
            "UPDATE segments SET raw_file = NULL WHERE segment_id IN (SELECT segment_id FROM training_sequences WHERE step < 2)"
        )
        cursor.execute(
            "UPDATE segments SET raw_file = NULL WHERE segment_id IN (SELECT rollout_segment FROM training_sequences WHERE step = 5)"
        )
    (before, _, _) = changed(home)
    with Store.open(Home(home), read_only=True) as store:
        gone = store.query("SELECT path FROM raw_files WHERE min_step = 7")["path"].to_pylist()
    for path in gone:  # as if removed between being looked up and being read
        (home / path).unlink()
    assert cli.main(["recompute", RUN, "--steps", ":7", "--home", str(home), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    some = "raw tokens of some sequences are gone"
    assert document["kept"] == [
        {"first": 0, "last": 1, "why": "raw tokens are gone"},
        {"first": 5, "last": 5, "why": some},
        {"first": 7, "last": 7, "why": "raw tokens are gone"},
    ]
    (after, _, _) = stored(home)
    kept = {0, 1, 5, 7}
    assert [row for row in after if row["step"] not in kept] == [row for row in before if row["step"] not in kept]


def test_a_record_that_was_joined_anew_keeps_what_the_join_computed(home: Path) -> None:
    whole = changed(home)
    with Store.open(Home(home)) as store:
        rows = store.read("recompute_sequences", run=RUN, steps=[1])
        part = next(recomputing._partitions(Home(home), recomputing._Alone(store), RUN, [[1]]))
        table, _ = partition.compute(part)
        assert rows.num_rows == table.num_rows
        with store.transaction() as cursor:
            cursor.execute("UPDATE training_sequences SET rollout_row = 77 WHERE step = 1")
        older = store.query("SELECT sum_k3 FROM statistics WHERE step = 1 AND pair = 'backend' ORDER BY ALL")
        writing.write(store, table, [1])
        assert store.query("SELECT sum_k3 FROM statistics WHERE step = 1 AND pair = 'backend' ORDER BY ALL") == older
        update = "SELECT sum_k3 FROM statistics WHERE step = 1 AND pair = 'update' ORDER BY ALL"
        wanted = sorted(row["sum_k3"] for row in whole[1] if row["step"] == 1 and row["pair"] == "update")
        assert store.query(update)["sum_k3"].to_pylist() == wanted


@pytest.mark.parametrize("name", ["../logprobe.duckdb", "x.arrow", "0" * 32 + ".arrow"])
def test_the_service_takes_no_other_files(home: Path, name: str) -> None:
    with Store.open(Home(home)) as store, pytest.raises(ConfigurationError, match=r"recompute\.write: "):
        writing._ACTIONS[writing.WRITE][1](store, {"file": name, "steps": []}, None)  # type: ignore[arg-type]
