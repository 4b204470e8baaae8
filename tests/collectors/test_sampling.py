"""Edge reduction in the recorder: which sequences keep their raw tokens, and what is written of all others."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from spool_contents import by_sample, health_events, segments
from training_calls import call

from logprobe.collectors import Recorder
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.collectors.recorder.reduction import sample_hash
from logprobe.collectors.spool.schema import STATISTICS
from logprobe.monitor.live.sequence_rows import reduce_training
from logprobe.monitor.live.soundness import sound_rows


def sequence(arguments: dict, name: str, row: int) -> np.ndarray:
    first, last = arguments["cu_seqlens"][row : row + 2]
    return arguments[name][first:last]


def names_below(fraction: float, names: list[str]) -> set[str]:
    """The rule, written down once more as the documentation has it."""
    digests = {name: hashlib.sha256(name.encode("utf-8")).hexdigest()[:16] for name in names}
    return {name for name, digest in digests.items() if int(digest, 16) < fraction * 2**64}


# --- Which ---


def test_the_hash_is_the_one_of_the_documentation():
    assert sample_hash("sample") == 0xAF2BDBE1AA9B6EC1


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.999999])
def test_the_sample_is_chosen_by_name_alone(home: Path, fraction: float):
    with Recorder(home, "run", raw_fraction=fraction, worst_sequences=0) as recorder:
        for step in range(5):
            assert recorder.training(**call(step))
        assert recorder.training(**call(5, sample_ids=np.arange(40)))  # a number is its digits
        assert recorder.flush() is True
    names = [*(f"{step}/{row}" for step in range(5) for row in range(40)), *map(str, range(40))]
    raw, reduced = set(by_sample(home, "training")), set(by_sample(home, "statistics"))
    assert raw == names_below(fraction, names)
    assert raw | reduced == set(names)
    assert not raw & reduced


def k3_sums(arguments: dict) -> np.ndarray:
    behaviour, policy = (arguments[name] for name in ("rollout_logprobs", "trainer_logprobs"))
    return sequence_statistics(behaviour, policy, arguments["mask"], arguments["cu_seqlens"])["sum_k3"]


def test_the_worst_of_a_step_are_kept_whatever_their_names(home: Path):
    micro_batches = [call(7, seed=seed, sample_ids=[f"{seed}/{row}" for row in range(40)]) for seed in range(8)]
    with Recorder(home, "run", raw_fraction=0, worst_sequences=3) as recorder:
        for arguments in micro_batches:
            recorder.training(**arguments)
        recorder.training(**call(8))
    found = {name: row for name, row in by_sample(home, "training").items() if row["step"] == 7}
    sums = {f"{seed}/{row}": k3 for seed in range(8) for row, k3 in enumerate(k3_sums(micro_batches[seed]))}
    assert set(sorted(sums, key=sums.__getitem__)[-3:]) <= set(found)
    assert len(found) < 8 * 3, "those of later calls must be worse than those of earlier ones"
    assert len([row for row in by_sample(home, "training").values() if row["step"] == 8]) == 3


def test_broken_tokens_are_worse_than_any_mismatch(home: Path):
    arguments = call(1)
    rows = np.flatnonzero(np.diff(arguments["cu_seqlens"]) > 10)
    nan, sentinel, wide = rows[:3].tolist()
    arguments["mask"][:] = True
    sequence(arguments, "trainer_logprobs", wide)[:] -= 15
    sequence(arguments, "rollout_logprobs", sentinel)[3] = -9999
    sequence(arguments, "rollout_logprobs", nan)[2:4] = np.nan
    with Recorder(home, "run", raw_fraction=0, worst_sequences=2) as recorder:
        recorder.training(**arguments)
    assert set(by_sample(home, "training")) == {f"1/{nan}", f"1/{sentinel}"}
    reduced = by_sample(home, "statistics")
    assert reduced[f"1/{wide}"]["backend"]["n"] == len(sequence(arguments, "mask", wide))


# --- What ---


def test_the_statistics_are_bit_for_bit_those_of_the_raw_tokens(tmp_path: Path):
    broken = call(2)
    broken["rollout_logprobs"][::50] = np.nan
    broken["trainer_logprobs"][3::70] = 1.0
    long_ = np.array([70_000, 5, 0, 140_000, 64_000, 3_000])
    rng = np.random.default_rng(5)
    size = int(long_.sum())
    rollout = -rng.exponential(1.0, size).astype(np.float32)
    long_call = {
        "step": 3,
        "sample_ids": [f"long {row}" for row in range(len(long_))],
        "token_ids": rng.integers(0, 1000, size),
        "rollout_logprobs": rollout,
        "trainer_logprobs": np.minimum(rollout + 0.01 * rng.standard_normal(size), 0).astype(np.float32),
        "cu_seqlens": np.concatenate([[0], np.cumsum(long_)]),
    }
    for name, fraction in {"raw": 1.0, "edge": 0.1}.items():
        with Recorder(tmp_path / name, "run", raw_fraction=fraction, worst_sequences=0, rank=1) as recorder:
            for arguments in (call(1), broken, long_call):
                assert recorder.training(**arguments)
    expected: dict[str, dict] = {}
    for segment in segments(tmp_path / "raw"):
        if segment.where.kind == "training":
            rows = reduce_training(sound_rows([segment])[0].table).select(STATISTICS.names).to_pylist()
            expected |= {row["sample_id"]: row for row in rows}
    found = by_sample(tmp_path / "edge", "statistics")
    assert len(found) > 40
    assert "long 3" in found
    for name, row in found.items():
        for column in (*STATISTICS.names[1:], *PAIRS):
            assert row[column] == expected[name][column], (name, column)


def test_without_rollout_logprobs_every_sequence_stays_raw(home: Path):
    arguments = {**call(1), "rollout_logprobs": None}
    with Recorder(home, "run", raw_fraction=0) as recorder:
        recorder.training(**arguments)
    assert len(by_sample(home, "training")) == 40
    assert not by_sample(home, "statistics")


# --- What is said about it ---


def test_sampling_is_said_and_is_no_loss(home: Path):
    with Recorder(home, "run", raw_fraction=0.25, worst_sequences=0) as recorder:
        recorder.training(**call(4))
        assert recorder.flush() is True
    health = recorder.health
    reduced = by_sample(home, "statistics")
    tokens = sum(row["n_total"] for row in reduced.values())
    assert health["dropped"] == {}
    assert health["reduced"] == {"sequences": len(reduced), "tokens": tokens}
    (event,) = health_events(home)["raw_sampled"]
    assert (event["severity"], event["sequences"], event["tokens"], event["step"]) == ("info", len(reduced), tokens, 4)
    (started,) = health_events(home)["started"]
    assert '"raw_fraction": 0.25' in started["details"]


def test_of_a_refusing_disk_only_the_sample_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logprobe.collectors.recorder.outbox._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("logprobe.collectors.recorder.outbox._LONGEST_PAUSE", 0.01)
    blocker = tmp_path / "blocker"
    blocker.write_text("a file where a directory is needed")
    with Recorder(blocker / "home", "run", raw_fraction=0.25, worst_sequences=0) as recorder:
        for step in (1, 2):  # the first finds out, the second knows
            recorder.training(**call(step))
            assert recorder.flush() is False
        blocker.unlink()
    names = [f"{step}/{row}" for step in (1, 2) for row in range(40)]
    assert set(by_sample(blocker / "home", "statistics")) == set(names)
    assert recorder.health["dropped"]["raw_reduced"]["sequences"] == len(names_below(0.25, names))


# --- Settings ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"raw_fraction": 1.5}, "raw_fraction=1.5"),
        ({"raw_fraction": -0.1}, "raw_fraction=-0.1"),
        ({"raw_fraction": float("nan")}, "raw_fraction=nan"),
        ({"raw_fraction": True}, "raw_fraction=True"),
        ({"raw_fraction": "half"}, "raw_fraction='half'"),
        ({"worst_sequences": -1}, "worst_sequences=-1"),
        ({"worst_sequences": 1.0}, "worst_sequences=1.0"),
        ({"worst_sequences": True}, "worst_sequences=True"),
    ],
)
def test_wrong_settings_raise_at_once(home: Path, arguments: dict, words: str):
    with pytest.raises(ConfigurationError, match=words):
        Recorder(home, "run", **arguments)


def test_a_wrong_fraction_of_the_environment_names_the_variable(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGPROBE_RECORD", "raw=2")
    with pytest.raises(ConfigurationError, match="option raw of LOGPROBE_RECORD='2'"):
        Recorder(home, "run")
    with Recorder(home, "run", raw_fraction=1) as recorder:  # what is passed comes first
        recorder.training(**call(1))
    assert len(by_sample(home, "training")) == 40
