"""What hosts send when something is wrong with them, from `Recorder` to the command line: everybody says so, nothing looks better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import JUDGED, logprobe

from logprobe.collectors.recorder.recorder import Recorder

TOKENS = 8
SEQUENCES = 4
GAP = 0.25
# Of one token: the value on one side, and how the command line counts it.
BROKEN = [
    (np.nan, "nonfinite"),
    (np.inf, "nonfinite"),
    (-np.inf, "nonfinite"),
    (-9999.0, "impossible"),
    (1.0, "impossible"),
    (1e-3, "impossible"),
]
RUNS = ("../../up", "line\nbreak", "-rf")


class Sender:
    """Sends batches in which t and r differ by `GAP` everywhere, step after step."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.step = -1

    def send(self, *, ids: list[str] | None = None, joined: bool = False, **arrays: Any) -> int:
        """One batch, in a step of its own."""
        self.step += 1
        trainer, rollout = logprobs()
        defaults = {
            "sample_ids": ids or [f"{self.step}-{i}" for i in range(SEQUENCES)],
            "token_ids": [np.arange(TOKENS)] * SEQUENCES,
            "trainer_logprobs": trainer,
            "rollout_logprobs": None if joined else rollout,
            "weight_version": 7,
        }
        assert self.recorder.training(step=self.step, **(defaults | arrays))
        return self.step


def logprobs() -> tuple[list[np.ndarray], list[np.ndarray]]:
    rollout = [np.full(TOKENS, -1.5, np.float32) for _ in range(SEQUENCES)]
    return [values + np.float32(GAP) for values in rollout], rollout


def broken_batch(value: float, side: str) -> dict[str, Any]:
    trainer, rollout = logprobs()
    (trainer if side == "t" else rollout)[0][3] = value
    return {"trainer_logprobs": trainer, "rollout_logprobs": rollout}


def say(home: Path, command: str, *arguments: str) -> str:
    """What a command prints."""
    code = JUDGED if command == "show" else 0
    return str(logprobe(command, f"--home={home}", *arguments, code=code).stdout)


def told(home: Path, run: str = "run") -> tuple[dict[int, dict[str, Any]], dict[str, Any], str]:
    """Metrics by step, the status and the doctor's findings about runs, as the command line tells them."""
    say(home, "up", "--once")
    metrics = json.loads(say(home, "show", "--metrics", "--json", "--", run))
    status = json.loads(say(home, "show", "--json", "--", run))
    findings = json.loads(say(home, "doctor", "--json"))
    texts = [finding["text"] for finding in findings if finding["section"] == "runs"]
    return {step["step"]: step["metrics"] for step in metrics["steps"]}, status, " / ".join(texts)


def test_broken_tokens_are_counted_by_kind_and_told_by_everybody(home: Path) -> None:
    kinds: dict[int, str] = {}
    with Recorder(home, "run") as recorder:
        sender = Sender(recorder)
        healthy = sender.send()
        for value, kind in BROKEN:
            for side in "tr":
                kinds[sender.send(**broken_batch(value, side))] = kind
        # Exactly 0 is what a placeholder looks like where the trainer is far from sure.
        kinds[sender.send(**broken_batch(0.0, "r"))] = "impossible"
    metrics, status, doctor = told(home)
    for step, kind in kinds.items():
        other = "impossible" if kind == "nonfinite" else "nonfinite"
        assert metrics[step][f"backend.{kind}_tokens"] == 1
        assert metrics[step][f"backend.{other}_tokens"] == 0
        assert metrics[step]["backend.coverage"] == pytest.approx(31 / 32)
        for key in ("k3_kl", "logprob_abs_diff_mean", "ratio_max"):
            assert metrics[step][f"backend.{key}"] == pytest.approx(metrics[healthy][f"backend.{key}"], rel=1e-12)
    assert status["measured"]["nonfinite_tokens"] == 6
    assert status["measured"]["impossible_tokens"] == 7
    assert status["measured"]["measured_tokens"] == status["measured"]["tokens"] - 13
    assert f"6 non-finite and 7 impossible of {14 * 32} tokens" in doctor
    words = say(home, "show", "run")
    assert f"measured     {14 * 32 - 13} of {14 * 32} tokens under the mask; 6 non-finite and 7 impossible\n" in words


def test_what_has_no_valid_token_has_no_value(home: Path) -> None:
    empty = [np.empty(0, np.float32)] * 2
    with Recorder(home, "run") as recorder:
        sender = Sender(recorder)
        masked = sender.send(mask=[np.zeros(TOKENS, bool)] * SEQUENCES)
        nothing = sender.send(
            ids=["x", "y"], token_ids=[np.empty(0, int)] * 2, trainer_logprobs=empty, rollout_logprobs=empty
        )
        trainer, rollout = logprobs()
        all_nan = sender.send(trainer_logprobs=[np.full(TOKENS, np.nan)] * SEQUENCES)
        unmatched = sender.send(joined=True)
        single = [values[:1] for values in trainer], [values[:1] for values in rollout]
        one_token = sender.send(
            token_ids=[np.zeros(1, int)] * SEQUENCES, trainer_logprobs=single[0], rollout_logprobs=single[1]
        )
    metrics, status, doctor = told(home)
    for step in (masked, nothing, all_nan, unmatched):
        known = {key for key, value in metrics[step].items() if value is not None and key.startswith("backend.")}
        assert known <= {
            f"backend.{key}" for key in ("coverage", "nonfinite_tokens", "impossible_tokens", "clamped_tokens")
        }
    assert [metrics[step]["backend.coverage"] for step in (masked, nothing, all_nan, unmatched)] == [None, None, 0, 0]
    assert metrics[all_nan]["backend.nonfinite_tokens"] == 32
    assert metrics[one_token]["backend.k3_kl"] > 0
    assert metrics[one_token]["backend.calibration_z"] is None  # sequences all alike have no standard error
    assert status["measured"]["measured_tokens"] == SEQUENCES
    assert "4 of 18 sequences with neither received nor recorded rollout log-probs" in doctor


def test_a_sequence_that_counts_twice_is_told(home: Path) -> None:
    with Recorder(home, "run") as recorder:
        sender = Sender(recorder)
        sender.send(ids=["a", "a", "b", "c"])
        sender.send(ids=["a", "b", "c", "d"])  # in another step: an epoch over the same samples
        sender.step -= 1
        sender.send(ids=["a", "b", "c", "d"])  # the same step again, as after going back to a checkpoint
    metrics, status, doctor = told(home)
    assert status["measured"]["repeated"] == 1 + 4
    assert "run: 5 sequences repeat a sample id of the same step and are counted again" in doctor
    assert "under the mask; 5 sequences repeat a sample id of the same step\n" in say(home, "show", "run")
    assert metrics[1]["backend.coverage"] == 1


def test_the_two_sides_disagree_about_the_tokens(home: Path) -> None:
    _, rollout = logprobs()
    with Recorder(home, "run") as recorder:
        sender = Sender(recorder)
        step = sender.send(ids=["short", "other", "same", "lost"], joined=True)
        assert recorder.rollout(
            sample_ids=["short", "other", "same"],
            token_ids=[np.arange(5), np.arange(TOKENS) + 1, np.arange(TOKENS)],
            logprobs=[rollout[0][:5], rollout[1], rollout[2]],
            weight_version=["not stated", "7", "7"],
        )
    metrics, _, doctor = told(home)
    found = metrics[step]
    # "short" as far as it goes, "same"
    assert found["backend.coverage"] == pytest.approx((5 + TOKENS) / (SEQUENCES * TOKENS))
    assert found["token_mismatch_frac"] == pytest.approx(1 / 3)
    assert found["length_mismatch_frac"] == pytest.approx(1 / 3)
    assert found["weight_lag_mean"] is None  # the rest would be lag 0
    assert "1 of 4 sequences with tokens that differ from the engine's" in doctor
    assert "1 of 4 sequences without a rollout record; unknown: weight lag" in doctor


def test_names_of_runs_are_only_names(home: Path, tmp_path: Path) -> None:
    for run in RUNS:
        with Recorder(home, run) as recorder:
            Sender(recorder).send()
    metrics, _, doctor = told(home, RUNS[0])
    assert metrics[0]["backend.coverage"] == 1
    for run in RUNS:
        assert json.loads(say(home, "show", "--json", "--", run))["run"] == run
        assert f"{run}: no rollout side" in doctor
    assert {path.name for path in tmp_path.iterdir()} == {home.name}  # nobody left the home
    for command in (["doctor"], ["show", "line\nbreak"], ["runs"]):
        assert "\nbreak" not in say(home, *command)


def test_a_number_that_no_record_can_hold_costs_only_its_own_call(home: Path) -> None:
    with Recorder(home, "run") as recorder:
        Sender(recorder).send()
        assert not recorder.step(2**63, loss=1.0)
        assert not recorder.step(-(2**63) - 1, loss=1.0)
        for step in (2**53 + 1, -(2**63), 2**63 - 1):  # what NaN becomes as a whole number
            assert not recorder.step(step, loss=1.0)
        assert not recorder.weights(1, step=2**70)
        assert recorder.report("odd", "numbers from elsewhere", step=2**64, tokens=2**64)
    _, status, _ = told(home)
    assert status["state"] == "ended"  # the recorder's last words arrived
    assert [(problem["event"], problem["times"]) for problem in status["problems"]] == [("bad_input", 6)]
