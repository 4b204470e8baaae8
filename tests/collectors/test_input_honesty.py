"""Input that is no measurement and must not pass for one: counted and shown. What can be seen at the call: `test_recorder.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_home import take_in

from logprobe.app.text.gaps import faults_of, measured
from logprobe.collectors import Recorder
from logprobe.collectors.kernel.statistics import BLANK_TOKENS, BROKEN, COLUMN_SPECS, empty, merge, sequence_statistics
from logprobe.monitor.home import Home
from logprobe.monitor.judging import bit_equality
from logprobe.monitor.judging.bit_equality import Certificate
from logprobe.monitor.store.store import Store

LONG = BLANK_TOKENS


def zeros_and(*lengths: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(sum(lengths), np.float32), np.concatenate([[0], np.cumsum(lengths)])


def test_a_sequence_of_exact_zeros_on_both_sides_is_broken_and_no_perfect_match():
    values, offsets = zeros_and(LONG, LONG - 1)
    found = sequence_statistics(values, values, None, offsets)
    assert found["n"].tolist() == [0, LONG - 1]
    assert found["n_zero_behaviour"].tolist() == [LONG, 0]
    assert found["n_expected"].tolist() == [LONG, LONG - 1]
    nothing = empty(1)
    kept = {"n_expected", *BROKEN}
    assert all(found[c.name][0] == nothing[c.name][0] for c in COLUMN_SPECS if c.name not in kept)
    assert {name: column.tolist() for name, column in merge(found, empty(2)).items()} == {
        n: c.tolist() for n, c in found.items()
    }


@pytest.mark.parametrize("side", ["rollout", "trainer"])
def test_a_side_of_exact_zeros_was_never_filled_in(side):
    """The likely tokens of such a sequence would pass for measurements."""
    other = np.full(12, -3.0, np.float32)
    other[:3] = -0.2
    sides = (np.zeros_like(other), other)
    behaviour, policy = sides if side == "rollout" else sides[::-1]
    found = sequence_statistics(behaviour, policy, None, np.array([0, 8, 12]))
    assert found["n"].tolist() == [0, 0]
    kind = "n_zero_behaviour" if side == "rollout" else "n_sentinel_policy"
    assert found[kind].tolist() == [8, 4]
    mostly = sequence_statistics(*(s[[0, 1, 2, 3, 4]] for s in (behaviour, policy)), None, np.array([0, 5]))
    assert mostly["n"][0] > 0  # most of these are likely: certain tokens round to 0


def test_single_certain_tokens_are_healthy():
    values, offsets = zeros_and(4 * LONG)
    values[LONG] = -1e-7
    found = sequence_statistics(values, values, None, offsets)
    assert (found["n"][0], found["n_zero_d"][0], found["n_zero_behaviour"][0]) == (4 * LONG, 4 * LONG, 0)


def stored(home: Path, tokens: int) -> tuple[dict[str, Any], Certificate, dict[str, Any]]:
    """Two steps of nothing but zeros, seen at engine and trainer, through ingest, join and the step metrics."""
    zeros = np.zeros((4, tokens), np.float32)
    with Recorder(home, "run", rank=0, flush_interval=60) as recorder:
        for step in range(2):
            names = [f"{step}/{row}" for row in range(4)]
            content = {"sample_ids": names, "token_ids": np.ones((4, tokens), int)}
            assert recorder.rollout(**content, logprobs=zeros, lengths=[tokens] * 4)
            assert recorder.training(step=step, **content, trainer_logprobs=zeros, mask=np.ones((4, tokens), bool))
    with Store.open(Home(home)) as store:
        take_in(store)
        (gaps,) = store.read("cli_gaps", run="run").to_pylist()
        judged = bit_equality.read(store, ["run"])["run"]
        metrics = store.query("SELECT metric, value FROM step_metrics WHERE step = 1").to_pylist()
    return gaps, judged, {row["metric"]: row["value"] for row in metrics}


def test_steps_of_zeros_are_shown_as_broken(home: Path):
    gaps, judged, metrics = stored(home, LONG)
    assert metrics["backend.k3_kl"] is None
    assert metrics["backend.coverage"] == 0
    assert metrics["backend.impossible_tokens"] == 4 * LONG
    assert judged.verdict == "not measured"
    assert "impossible" in measured(gaps)


def test_steps_of_short_sequences_of_zeros_are_not_called_identical(home: Path):
    gaps, judged, _ = stored(home, 3)
    assert judged.verdict == "not measured"
    assert any("exactly 0 on both sides" in words for words, _ in faults_of(gaps))
    assert measured(gaps).endswith("24 in sequences of exact zeros on both sides")
