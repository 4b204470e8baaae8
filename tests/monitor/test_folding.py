"""Old steps are folded into sums: metrics stay as they are in every bit, late data merge, a kill loses nothing, and the store is bounded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from processes import eventually, logprobe, service
from store_contents import same
from store_work import KEPT, METRICS, bring_in, compute_again, fold, recompute

from logprobe.app.dashboard.reading.token_text import kept_words
from logprobe.app.view import records
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor import worst
from logprobe.monitor.analysis import slices
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FileReader
from logprobe.monitor.store.folding import CHANCE, WORST, Folder, StoreBudget
from logprobe.monitor.store.store import Store

RUN = "r"
PROGRAM = Path(__file__).parent.parent / "support" / "folding_program.py"


class Trainer:
    """Records steps with everything that metrics read: three log-probs, broken tokens, lag, rewards, entropy, in every mixture."""

    def __init__(self, home: Path, seed: int = 1) -> None:
        self._recorder = Recorder(home, RUN, rank=0)
        self._rng = np.random.default_rng(seed)

    def record(self, steps: range, sequences: int = 6, *, name: str = "") -> None:
        for step in steps:
            self._record(step, [f"{name}{step}-{index}" for index in range(sequences)])
        assert self._recorder.flush()

    def close(self) -> None:
        self._recorder.close()

    def _record(self, step: int, samples: list[str]) -> None:
        rng, shape = self._rng, (len(samples), 12)
        r = -rng.exponential(0.7, shape).astype(np.float32)
        t = np.minimum(r + rng.normal(0, 0.1, shape), -1e-9).astype(np.float32)
        c = np.minimum(t + rng.normal(0, 0.05, shape), -1e-9).astype(np.float32)
        if step % 5 == 0:
            r[0, 0], t[1, 1] = np.nan, 0.5
        ids = rng.integers(0, 1000, shape)
        self._recorder.weights(step, step=step)
        spans = [[(0, 5, str(step - 1)), (5, 12, str(step))]] * (len(samples) - 1)
        self._recorder.rollout(
            sample_ids=samples, token_ids=ids, logprobs=r, lengths=[12] * len(samples),
            weight_version=[*spans, None],
        )  # fmt: skip
        self._recorder.training(
            step=step,
            sample_ids=samples,
            token_ids=ids,
            rollout_logprobs=None if step % 3 == 0 else r,
            trainer_logprobs=t,
            current_logprobs=c if step % 2 else None,
            mask=rng.random(shape) < 0.9,
            entropy=rng.random(shape),
            advantages=rng.normal(size=shape),
            rewards=rng.normal(size=len(samples)),
            weight_version=step,
        )
        self._recorder.step(step, loss=1.0)


def sequences(store: Store) -> int:
    """How many sequences the store tells of, in whatever form."""
    kept = store.query("SELECT count(*) AS n FROM training_sequences")["n"][0].as_py()
    return int(kept + store.query("SELECT coalesce(sum(sequences), 0)::BIGINT AS n FROM folded_joins")["n"][0].as_py())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with 40 steps; the store is closed."""
    home = tmp_path_factory.mktemp("folding") / "home"
    trainer = Trainer(home)
    trainer.record(range(40))
    trainer.close()
    with Store.open(Home(home)) as store:
        bring_in(store)
    return home


@pytest.fixture
def home(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that home."""
    return Path(shutil.copytree(recorded, tmp_path / "home"))


def window(**more: Any) -> dict[str, Any]:
    return {"run": RUN, "first": None, "last": None, **more}


# What is read of a run's whole past, and must not notice that it was folded.
READS: dict[str, dict[str, Any]] = {
    "slice_identity": {"runs": [RUN], "first": [None], "last": [None]},
    "diagnosis_steps": window(),
    "diagnosis_pairs": window(),
    "diagnosis_joins": window(),
    "diagnosis_config_changes": {"run": RUN},
    "diagnosis_configs": {"run": RUN},
    "cli_gaps": {"run": RUN},
    "alert_pulse": {"runs": [RUN]},
    "profile_read": window(pair="backend", dimension="position", per_step=False),
    "app_mismatch_density": {"run": RUN, "pair": "backend", "first": 0, "last": 255, "width": 256, "merge": 1},
    "app_mismatch_columns": {"run": RUN, "first": 0, "last": 255, "width": 256},
}


def test_folding_changes_no_metric_and_nothing_that_is_read_of_all_steps(home: Path) -> None:
    with Store.open(Home(home)) as store:
        recompute(store)  # the same rows in the same order, without folding: what a recomputation changes by itself
        before, reads = (
            store.query(METRICS),
            {name: store.read(name, **given).to_pylist() for name, given in READS.items()},
        )
        report = fold(store)
        assert (report.steps, report.sequences) == (36, 216)
        assert store.query(METRICS).equals(before)
        recompute(store)
        assert store.query(METRICS).equals(before)
        for name, given in READS.items():
            assert same(store.read(name, **given).to_pylist(), reads[name]), name
        kept = store.query("SELECT DISTINCT step FROM training_sequences ORDER BY step")["step"].to_pylist()
        assert (
            kept
            == store.query("SELECT DISTINCT step FROM statistics ORDER BY step")["step"].to_pylist()
            == [36, 37, 38, 39]
        )
        assert store.query("SELECT count(*) AS n FROM rollout_sequences")["n"].to_pylist() == [6 * KEPT]


def test_what_arrives_late_merges_as_if_nothing_had_been_folded(home: Path, tmp_path: Path) -> None:
    late = Trainer(home, seed=2)
    late.record(range(0, 40, 7), 3, name="late ")
    late.close()
    spooled = shutil.copytree(home / "spool", tmp_path / "spool")
    unfolded = Path(shutil.copytree(home, tmp_path / "unfolded"))
    with Store.open(Home(unfolded)) as store:
        bring_in(store)
        expected, everything = store.query(METRICS), sequences(store)
    with Store.open(Home(home)) as store:
        fold(store)
        bring_in(store)
        assert store.query(METRICS).equals(expected)
        assert fold(store).again == 6
        recompute(store)
        assert store.query(METRICS).equals(expected)
        shutil.copytree(spooled, home / "spool", dirs_exist_ok=True)  # as after a kill between commit and removal
        bring_in(store)
        assert sequences(store) == everything == 40 * 6 + 6 * 3
        assert store.query(METRICS).equals(expected)


def test_weights_that_become_known_later_change_the_lag_of_folded_steps(home: Path, tmp_path: Path) -> None:
    unfolded = Path(shutil.copytree(home, tmp_path / "unfolded"))
    with Store.open(Home(home)) as store:
        fold(store)
    found: list[pa.Table] = []
    for folder in (unfolded, home):
        with Store.open(Home(folder)) as store:
            with store.transaction() as cursor:
                cursor.execute("UPDATE weight_records SET step = step - 1 WHERE version = '7'")
            compute_again(store)
            found.append(store.query(METRICS))
    assert found[0].equals(found[1])
    with Store.open(Home(home)) as store:
        changed = store.query("SELECT value FROM step_metrics WHERE step = 8 AND metric = 'weight_lag_steps_max'")
        assert changed["value"].to_pylist() == [2.0]


def test_a_sample_of_sequences_is_kept_and_says_that_it_is_one(home: Path) -> None:
    with Store.open(Home(home)) as store:
        before = worst.sequences(store, RUN, count=WORST).to_pylist()
        fold(store)
        after = worst.sequences(store, RUN, count=WORST).to_pylist()
        assert [row["of_sample"] for row in after] == [row["step"] < 36 for row in after]
        for row in (*before, *after):
            row.pop("of_sample")
        assert same(after, before)  # the worst ones, their place and share are those among all sequences
        counts = store.query("SELECT count(*) AS n FROM sampled_sequences GROUP BY step")["n"].to_pylist()
        assert len(counts) == 36
        assert max(counts) <= WORST + CHANCE
        said = kept_words(store.read("app_tokens_sides", run=RUN, step=1).to_pylist())
        assert "all 6 sequences, the list is a sample" in said
        assert "sample" not in kept_words(store.read("app_tokens_sides", run=RUN, step=39).to_pylist())
        # What needs all sequences has nothing to say of a folded step; it does not speak of the sample as if it were all.
        steps = slices.by(store, RUN, "length", per_step=True, metrics=["backend.k3_kl"])["step"].to_pylist()
        assert set(steps) == {36, 37, 38, 39}
        assert set(store.query("SELECT step FROM sequences")["step"].to_pylist()) == {36, 37, 38, 39}
        # Raw tokens are still there: with r as the trainer received it, or that of the sample; else null.
        peers = store.read("peer_tokens", run=RUN, first=0, last=39)["step"].to_pylist()  # of all sequences, or of none
        assert {step: peers.count(step) for step in peers} == {step: 6 for step in range(40) if step % 3 or step >= 36}
        tokens = store.query(
            "SELECT step, count(rollout_logprob) AS r, count(*) AS n FROM tokens GROUP BY step ORDER BY step"
        )
        for row in tokens.to_pylist():
            assert (row["r"] == row["n"]) == (row["step"] % 3 != 0 or row["step"] >= 36), row


def test_a_step_that_was_computed_a_moment_ago_is_not_folded(home: Path) -> None:
    with Store.open(Home(home)) as store:
        assert Folder(store, StoreBudget(0)).run_once().steps == 0  # computed a moment ago


def test_kill_nine_in_the_middle_loses_nothing(home: Path) -> None:
    with Store.open(Home(home)) as store:
        recompute(store)
        expected = store.query(METRICS)
    killed = 0
    for delay in (0.0, 0.05, 0.15, 0.3, 0.5):
        with subprocess.Popen([sys.executable, str(PROGRAM), str(home)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(delay)
            process.kill()
            killed += process.wait() != 0
        with Store.open(Home(home)) as store:
            assert sequences(store) == 40 * 6
            assert store.query(METRICS).equals(expected)
    assert killed
    with Store.open(Home(home)) as store:
        fold(store)
        recompute(store)
        assert (sequences(store), store.query(METRICS).equals(expected)) == (40 * 6, True)


def test_the_store_stays_within_its_budget_however_long_a_run_goes_on(tmp_path: Path) -> None:
    """Rounds of steps with a limit that none of them fits into: what is in use grows by sums and metrics alone."""
    home = tmp_path / "home"
    trainer, used = Trainer(home), []
    with Store.open(Home(home)) as store:
        folder = Folder(store, StoreBudget(4 << 20), quiet=timedelta(0), protected=8)
        for number in range(5):
            trainer.record(range(60 * number, 60 * (number + 1)), 60)
            bring_in(store)
            used.append(folder.run_once().bytes)
            rows = store.query(
                "SELECT count(*) AS n, (SELECT count(*) FROM rollout_sequences) AS r FROM training_sequences"
            )
            assert rows.to_pylist() == [{"n": 8 * 60, "r": 8 * 60}]
        assert sequences(store) == 5 * 60 * 60
        assert store.query("SELECT count(*) AS n FROM step_summaries")["n"].to_pylist() == [300]
    trainer.close()
    assert used[-1] <= used[0] + (4 << 20), used  # 240 steps and 14,400 sequences later


def test_a_service_folds_by_itself_and_says_what_it_keeps(home: Path) -> None:
    with service(home, "--keep-store-gib", "0") as reader:

        def measured() -> dict[str, Any] | None:
            progress = reader.status()["jobs"]["store_budget"]["progress"]
            return progress if "max_bytes" in progress else None

        progress = eventually(measured, "it has looked at the store")
        assert progress["max_bytes"] == 0
        assert progress["over"] is True
        assert "--keep-store-gib" in progress["problem"]


def test_the_command_line_says_what_is_kept(home: Path) -> None:
    with Store.open(Home(home)) as store:
        fold(store)
    with FileReader(Home(home)) as reader:
        document = records.describe(reader, RUN, now=datetime.now(UTC))
    assert (document["kept"]["folded"], document["kept"]["last_folded"], document["kept"]["sampled_from"]) == (
        36,
        35,
        0,
    )
    assert document["sequences"] == document["measured"]["trained"] == 240
    assert "of 36 folded steps (0 to 35) sums and" in str(list(records.words(document)))
    done = logprobe("show", "--metrics", RUN, "--home", home, "--slice", "length")
    assert "36 steps (0 to 35) are folded and not in these slices" in done.stderr


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ConfigurationError, match="must not be negative"):
        StoreBudget(-1)
