"""Old steps are frozen: metrics stay as they are in every bit, a new index has them too, and the store is bounded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import eventually, logprobe, service
from segments import at, records, sampled, trained
from store_contents import same
from store_work import KEPT, METRICS, bring_in, freeze, recompute

from logprobe.app.dashboard.reading.token_text import kept_words
from logprobe.app.view import records as view
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.analysis import slices
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FileReader
from logprobe.monitor.store.freezing import Freezer, StoreBudget
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

RUN = "r"


def record(home: Path, steps: Iterable[int], sequences: int = 6, *, name: str = "", seed: int = 1) -> None:
    """Records everything that metrics read, in every mixture: three log-probs, broken tokens, lag, rewards, entropy."""
    rng, shape = np.random.default_rng(seed), (sequences, 12)
    with Recorder(home, RUN, rank=0) as recorder:
        for step in steps:
            r = -rng.exponential(0.7, shape).astype(np.float32)
            t = np.minimum(r + rng.normal(0, 0.1, shape), -1e-9).astype(np.float32)
            if step % 5 == 0:
                r[0, 0], t[1, 1] = np.nan, 0.5
            both = {
                "sample_ids": [f"{name}{step}-{n}" for n in range(sequences)],
                "token_ids": rng.integers(0, 1000, shape),
            }
            mask = rng.random(shape) < 0.9
            mask[:, [0, -1]] = True
            recorder.weights(step, step=step)
            spans = [[(0, 5, str(step - 1)), (5, 12, str(step))]] * (sequences - 1)
            recorder.rollout(**both, logprobs=r, lengths=[12] * sequences, weight_version=[*spans, None])
            recorder.training(
                step=step,
                **both,
                rollout_logprobs=None if step % 3 == 0 else r,
                trainer_logprobs=t,
                current_logprobs=np.minimum(t + rng.normal(0, 0.05, shape), -1e-9) if step % 2 else None,
                mask=mask,
                entropy=rng.random(shape),
                advantages=rng.normal(size=shape),
                rewards=rng.normal(size=sequences),
                weight_version=step,
            )
            recorder.step(step, loss=1.0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with 40 steps; the store is closed."""
    home = tmp_path_factory.mktemp("freezing") / "home"
    record(home, range(40))
    with Store.open(Home(home)) as store:
        bring_in(store)
    return home


@pytest.fixture
def home(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that home."""
    return Path(shutil.copytree(recorded, tmp_path / "home"))


# What is read of a run's whole past, and must not notice that it was frozen.
READS: dict[str, dict[str, Any]] = {
    "bits_steps": {"runs": [RUN], "until": None},
    "diagnosis_steps": {"run": RUN, "first": None, "last": None},
    "diagnosis_config_changes": {"run": RUN},
    "alert_pulse": {"runs": [RUN]},
}


def reads(store: Store) -> dict[str, Any]:
    return {name: store.read(name, **given).to_pylist() for name, given in READS.items()}


def without_index(home: Path) -> None:
    for path in home.glob("logprobe.duckdb*"):
        path.unlink()


def sequences_kept(store: Store) -> list[int]:
    steps = store.query("SELECT DISTINCT step FROM training_sequences ORDER BY step")["step"].to_pylist()
    assert steps == store.query("SELECT DISTINCT step FROM statistics ORDER BY step")["step"].to_pylist()
    return steps


def test_freezing_changes_no_metric_and_a_new_index_has_them_too(home: Path) -> None:
    with Store.open(Home(home)) as store:
        before, seen = store.query(METRICS), reads(store)
        chosen = {row["step"]: row["revision"] for row in store.query("FROM step_summaries WHERE step < 3").to_pylist()}
        assert not store.archive.freeze(RUN, chosen | {1: chosen[1] - 1}), "one was computed again since it was chosen"
        assert sequences_kept(store) == [*range(40)]
        report = freeze(store)
        assert (report.steps, report.sequences) == (36, 216)
        assert store.query(METRICS).equals(before)
        assert all(same(found, seen[name]) for name, found in reads(store).items())
        assert sequences_kept(store) == [36, 37, 38, 39]
        assert store.query("SELECT count(*) AS n FROM rollout_sequences")["n"].to_pylist() == [6 * KEPT]
        assert freeze(store).steps == 0
        recompute(store)
        assert store.query(METRICS).equals(before)
    without_index(home)
    with Store.open(Home(home)) as store:
        bring_in(store)
        assert store.query(METRICS).equals(before)
        found = reads(store)
        for name in READS.keys() - {"alert_pulse"}:  # when segments were taken in is another time
            assert same(found[name], seen[name]), name
        assert sequences_kept(store) == [36, 37, 38, 39]


def test_files_with_statistics_go_once_all_their_steps_are_frozen(home: Path) -> None:
    kinds = (
        "SELECT kind, count(*) AS n FROM raw_files WHERE kind IN ('sequences', 'frozen') GROUP BY kind ORDER BY kind"
    )
    with Store.open(Home(home)) as store:
        Retention(store, RetentionPolicy(max_bytes=0)).run_once()
        before, seen = store.query(METRICS), reads(store)
        for protected, expected in ((KEPT, {"frozen": 1, "sequences": 2}), (0, {"frozen": 2})):
            freeze(store, protected=protected)
            assert {row["kind"]: row["n"] for row in store.query(kinds).to_pylist()} == expected
            assert all(same(found, seen[name]) for name, found in reads(store).items())
        assert not list((home / "archive").glob("*/sequences/*.parquet"))
    without_index(home)
    with Store.open(Home(home)) as store:
        bring_in(store)
        assert store.query(METRICS).equals(before)
        assert store.query("SELECT sequences, rollouts FROM runs").to_pylist() == [{"sequences": 240, "rollouts": 240}]
        (sent,) = store.read("cli_sent", run=RUN).to_pylist()
        assert (sent["sent"], sent["missing"], sent["surplus"]) == (480, 0, 0)


def test_a_run_whose_deletion_was_cut_short_is_not_frozen(home: Path) -> None:
    with Store.open(Home(home)) as store:
        store.archive.tombstones.add(RUN, "ann")
        freeze(store)
        assert sequences_kept(store) == list(range(40))


def test_late_records_of_frozen_steps_are_counted_and_not_computed(home: Path) -> None:
    with Store.open(Home(home)) as store:
        assert Freezer(store, StoreBudget(0)).run_once().steps == 0, "computed a moment ago"
        before = store.query(METRICS)
        freeze(store)
        record(home, range(0, 36, 7), 3, name="late ", seed=2)
        bring_in(store)
        assert store.query(METRICS).equals(before)
        assert sequences_kept(store) == [36, 37, 38, 39]
        said = "SELECT sum(sequences)::BIGINT AS n FROM health_records WHERE event = 'late_records'"
        assert store.query(said)["n"].to_pylist() == [6 * 3]


def test_what_needs_sequences_says_nothing_of_a_frozen_step_and_everybody_says_so(home: Path) -> None:
    last = {36, 37, 38, 39}
    with Store.open(Home(home)) as store:
        freeze(store)
        steps = slices.by(store, RUN, "length", per_step=True, metrics=["backend.k3_kl"])["step"].to_pylist()
        assert set(steps) == last
        assert set(store.read("peer_tokens", run=RUN, first=0, last=39)["step"].to_pylist()) == last
        said = kept_words(store.read("app_tokens_sides", run=RUN, step=1).to_pylist())
        assert "Frozen since" in said
        assert "all 6 sequences" in said
        assert "Frozen" not in kept_words(store.read("app_tokens_sides", run=RUN, step=39).to_pylist())
        # Raw tokens are still there: with r as the trainer received it, else null.
        tokens = store.query("SELECT step, count(rollout_logprob) AS r, count(*) AS n FROM tokens GROUP BY step")
        for row in tokens.to_pylist():
            assert (row["r"] == row["n"]) == (row["step"] % 3 != 0 or row["step"] in last), row
    with FileReader(Home(home)) as reader:
        document = view.describe(reader, RUN, now=datetime.now(UTC))
    assert document["kept"] == {"frozen": 36, "first_frozen": 0, "last_frozen": 35}
    assert (document["sequences"], document["measured"]["trained"]) == (240, 24)
    assert "no sequences of 36 frozen steps (0 to 35)" in str(list(view.words(document)))
    done = logprobe("show", "--metrics", RUN, "--home", home, "--slice", "length")
    assert "36 steps (0 to 35) are frozen and not in these slices" in done.stderr


def test_the_store_stays_within_its_budget_however_long_a_run_goes_on(tmp_path: Path) -> None:
    """Rounds of steps with a limit that none of them fits into: what is in use grows by sums and metrics alone."""
    home = tmp_path / "home"
    used = []
    with Store.open(Home(home)) as store:
        freezer = Freezer(store, StoreBudget(1 << 20), quiet=timedelta(0), protected=8)
        for number in range(3):
            record(home, range(30 * number, 30 * (number + 1)), 20, seed=number)
            bring_in(store)
            used.append(freezer.run_once().bytes)
            rows = store.query(
                "SELECT count(*) AS n, (SELECT count(*) FROM rollout_sequences) AS r FROM training_sequences"
            )
            assert rows.to_pylist() == [{"n": 8 * 20, "r": 8 * 20}]
        assert store.query("SELECT count(*) AS n FROM step_summaries")["n"].to_pylist() == [90]
    assert used[-1] <= used[0] + (3 << 20), used  # 60 steps and 1,200 sequences later


def test_a_service_freezes_by_itself_and_says_what_it_keeps(home: Path) -> None:
    (home / "logprobe.yaml").write_text("server: {keep_store_gib: 0}\n")
    with service(home) as reader:
        measured = lambda: reader.status()["jobs"]["store_budget"]["progress"]
        eventually(lambda: "max_bytes" in measured(), "it has looked at the store")
        progress = measured()
        assert (progress["max_bytes"], progress["over"]) == (0, True)
        assert "keep_store_gib" in progress["problem"]


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ConfigurationError, match="use 0 or more"):
        StoreBudget(-1)


@pytest.mark.parametrize(
    ("number", "hours", "goes"), [(1, 0.9, False), (1, 1.1, True), (3, 1.1, False), (3, 47.9, False), (3, 48.1, True)]
)
def test_records_that_no_step_used_go_by_their_writers_later_ones_and_not_by_a_clock(
    store: Store, number: int, hours: float, goes: bool
) -> None:
    """Step 0 is frozen, whose rollout is the engine's second segment; `hours`: before the oldest step that is kept."""
    engine, trainer = (SpoolWriter(store.home.path, RUN, name) for name in ("engine", "trainer"))
    waiting = sampled("waits", time=at(-3600 * hours))
    for _, row in sorted({number: waiting, 2: sampled("a")}.items()):
        engine.write("rollout", records("rollout", row))
    kept = [trained("b", 1, time=at(0)), trained("c", 2, time=at(1))]
    trainer.write("training", records("training", trained("a", 0, time=at(-1), received=False), *kept))
    bring_in(store)
    assert freeze(store, protected=2).steps == 1
    left = store.query("SELECT sample_id FROM rollout_sequences")["sample_id"].to_pylist()
    assert left == ([] if goes else ["waits"])
