"""A recorder that ships statistics for most sequences, all the way to the metrics: the numbers are those of all raw tokens.

Which sequences stay raw: tests/collectors/test_sampling.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import JUDGED, logprobe
from recorded_home import take_in
from training_calls import call

from logprobe.collectors import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

RUN, STEPS, SEQUENCES = "run", 2, 48
FRACTIONS = {"all": 1.0, "some": 0.1, "none": 0.0}
Homes = dict[str, Path]


def record(home: Path, fraction: float) -> None:
    """Both sides of a run, with masks, broken tokens, lag, and calls without r."""
    with (
        Recorder(home, RUN, component="engine") as engine,
        Recorder(home, RUN, rank=0, raw_fraction=fraction, worst_sequences=2) as trainer,
    ):
        for step in range(STEPS):
            trainer.weights(step, step=step, applied_at=1000.0 + step)
            for half in range(2):
                names = [f"{step}/{half}/{row}" for row in range(SEQUENCES)]
                known = call(step, SEQUENCES, seed=half, sample_ids=names, weight_version=step)
                sides = {name: known[name] for name in ("sample_ids", "token_ids", "cu_seqlens")}
                older = [str(max(step - 1, 0))] * SEQUENCES
                engine.rollout(**sides, logprobs=known["rollout_logprobs"], weight_version=older)
                known["trainer_logprobs"][::40], known["mask"][::40] = np.nan, True
                trainer.training(**known | ({"rollout_logprobs": None} if half else {}))
            trainer.step(step, grad_norm=1.0)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Homes:
    """The same run three times, ingested, joined and computed; only `raw_fraction` differs."""
    found = {name: tmp_path_factory.mktemp(name) / "home" for name in FRACTIONS}
    for name, home in found.items():
        record(home, FRACTIONS[name])
        with Store.open(Home(home)) as store:
            take_in(store)
    return found


COUNTED = "SELECT count(*) AS n, count(DISTINCT sample_id) AS names, count(*) FILTER (raw_kept) AS raw FROM training_sequences"
SUMS = """
SELECT t.sample_id, s.* EXCLUDE (segment_id, row) FROM statistics AS s
JOIN training_sequences AS t USING (segment_id, row) ORDER BY ALL
"""


def stored(home: Path) -> tuple[dict[str, int], list[dict[str, Any]], dict[tuple[int, str], float]]:
    """How many sequences, their sums, and what is measured of their steps."""
    with Store.open(Home(home)) as store:
        (counted,) = store.query(COUNTED).to_pylist()
        measured = store.query("FROM step_metrics WHERE value IS NOT NULL").to_pylist()
        sums = [{name: repr(value) for name, value in row.items()} for row in store.query(SUMS).to_pylist()]
    return counted, sums, {(row["step"], row["metric"]): row["value"] for row in measured}


def test_sums_and_metrics_are_those_of_all_raw_tokens_and_every_sequence_counts_once(homes: Homes) -> None:
    _, all_sums, expected = stored(homes["all"])
    total = STEPS * 2 * SEQUENCES
    assert {
        (step, metric) for step in range(STEPS) for metric in ("backend.k3_kl", "weight_lag_mean")
    } <= expected.keys()
    assert expected[0, "backend.coverage"] < 1
    raw = []
    for home in homes.values():
        counted, sums, found = stored(home)
        assert (counted["n"], counted["names"]) == (total, total)
        assert sums == all_sums, "in every bit"
        # Sequences arrive in another order, and sums of differences lose some of their digits to it.
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-13)
        raw.append(counted["raw"])
    assert total == raw[0] > raw[1] > raw[2] >= total // 2, "what had to be joined stays raw"


def test_show_and_doctor_say_sampled_and_not_lost(homes: Homes) -> None:
    total = STEPS * 2 * SEQUENCES
    reduced = total - stored(homes["some"])[0]["raw"]
    for command in (("show", RUN), ("doctor",)):
        text = logprobe(*command, "--home", homes["some"], code=JUDGED).stdout
        assert f"raw tokens are sampled, not lost: {reduced} of {total} sequences" in text
        assert "no raw tokens, statistics only" not in text
    assert "are sampled" not in logprobe("show", RUN, "--home", homes["all"], code=JUDGED).stdout
