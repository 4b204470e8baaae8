"""Every dtype of the engine beside every dtype of the trainer: which pair is which, and a dtype that one of them cannot run in."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from logprobe.app.commands.score import dtypes_text
from logprobe.app.parsers.arguments import dtype_list
from logprobe.monitor.proof.dtype_grid import dtype_grid
from logprobe.monitor.proof.sample import TokenSequence
from logprobe.monitor.proof.scorers.running import ENGINE, Outcome
from logprobe.monitor.proof.scoring import Setup

OFF = {"float32": 0.0, "bfloat16": 0.02, "float16": 0.005}


def _run(module: str, job: dict, **_: object) -> Outcome:
    """Log-probs that are off by the dtype's rounding; the engine has no float16 here."""
    engine = module == ENGINE
    dtype = job["overrides"]["dtype"] if engine else job["settings"]["dtype"]
    if engine and dtype == "float16":
        return Outcome(None, "ValueError: no float16 here", 0.0, answered=True)
    assert not engine or job["overrides"]["enable_prefix_caching"] is False
    values = [[-1.0 + OFF[dtype] * (1 if engine else -1)] * len(one["response_ids"]) for one in job["sequences"]]
    answer = {"decode": values, "rates": [100.0, 100.0], "settings": {}, "values": values, "tokens_per_s": 1.0}
    return Outcome(answer, None, 0.0, answered=True)


def test_each_pair_has_its_own_gap_and_a_dtype_that_does_not_run_is_unknown(tmp_path: Path):
    sequences = [TokenSequence(str(at), (1,), (2, 3), rollout_version="7") for at in range(5)]
    pairs, problems = dtype_grid(sequences, Setup({"7": tmp_path}), [*OFF], run=_run)
    found = {(pair.engine, pair.trainer): pair.abs_diff_mean for pair in pairs}
    expected = {
        (engine, trainer): None if engine == "float16" else OFF[engine] + OFF[trainer]
        for engine in OFF
        for trainer in OFF
    }
    assert found == {pair: None if off is None else pytest.approx(off) for pair, off in expected.items()}
    assert problems == ("in float16: engine: ValueError: no float16 here",)
    rows = dtypes_text(pairs).splitlines()
    assert [row.split()[0] for row in rows[3:]] == [*OFF]
    assert rows[3].split()[1] == "0"
    assert rows[5].split()[1:] == ["–"] * 4


def test_a_dtype_that_nobody_knows_is_refused_before_an_engine_starts():
    assert dtype_list("bfloat16,float32,bfloat16") == ["bfloat16", "float32"]
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"'float32,bf16' is not a list of dtypes; choose from float32"
    ):
        dtype_list("float32,bf16")
