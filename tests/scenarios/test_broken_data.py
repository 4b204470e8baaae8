"""What hosts send when something is wrong with them, from `Recorder` to the command line: everybody says so, nothing looks better."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Told:
    """What the command line tells of a home that was ingested, asked of it once."""

    home: Path
    sent: dict[str, Any]  # run → what its test has to know of what was sent
    doctor: str

    def of(self, run: str) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
        """Metrics by step, and the status."""
        metrics = json.loads(say(self.home, "show", "--metrics", "--json", "--", run))
        status = json.loads(say(self.home, "show", "--json", "--", run))
        return {step["step"]: step["metrics"] for step in metrics["steps"]}, status


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A home with a run for each test."""
    home, sent = tmp_path_factory.mktemp("broken") / "home", {}
    for run, send in SENT.items():
        with Recorder(home, run) as recorder:
            sent[run] = send(Sender(recorder))
    say(home, "up", "--once")
    findings = json.loads(say(home, "doctor", "--json"))
    return Told(home, sent, " / ".join(finding["text"] for finding in findings if finding["section"] == "runs"))


def send_broken(sender: Sender) -> tuple[int, dict[int, str]]:
    """The healthy step; and of the others what kind the one broken token is."""
    healthy, kinds = sender.send(), {}
    for value, kind in BROKEN:
        for side in "tr":
            kinds[sender.send(**broken_batch(value, side))] = kind
    # Exactly 0 is what a placeholder looks like where the trainer is far from sure.
    kinds[sender.send(**broken_batch(0.0, "r"))] = "impossible"
    return healthy, kinds


def test_broken_tokens_are_counted_by_kind_and_told_by_everybody(told: Told) -> None:
    (healthy, kinds), (metrics, status) = told.sent["broken"], told.of("broken")
    for step, kind in kinds.items():
        other = "impossible" if kind == "nonfinite" else "nonfinite"
        assert metrics[step][f"backend.{kind}_tokens"] == 1
        assert metrics[step][f"backend.{other}_tokens"] == 0
        assert metrics[step]["backend.coverage"] == pytest.approx(31 / 32)
        for key in ("k3_kl", "logprob_abs_diff_mean", "ratio_max"):
            assert metrics[step][f"backend.{key}"] == pytest.approx(metrics[healthy][f"backend.{key}"], rel=1e-12)
    measured, tokens = status["measured"], 14 * 32
    assert (measured["nonfinite_tokens"], measured["impossible_tokens"]) == (6, 7)
    assert measured["measured_tokens"] == measured["tokens"] - 13 == tokens - 13
    assert f"broken: 6 non-finite and 7 impossible of {tokens} tokens" in told.doctor
    words = say(told.home, "show", "broken")
    assert f"measured     {tokens - 13} of {tokens} tokens under the mask; 6 non-finite and 7 impossible\n" in words


def send_nothing_valid(sender: Sender) -> dict[str, int]:
    empty = [np.empty(0, np.float32)] * 2
    trainer, rollout = logprobs()
    first = {"trainer_logprobs": [v[:1] for v in trainer], "rollout_logprobs": [v[:1] for v in rollout]}
    return {
        "masked": sender.send(mask=[np.zeros(TOKENS, bool)] * SEQUENCES),
        "nothing": sender.send(
            ids=["x", "y"], token_ids=[np.empty(0, int)] * 2, trainer_logprobs=empty, rollout_logprobs=empty
        ),
        "all NaN": sender.send(trainer_logprobs=[np.full(TOKENS, np.nan)] * SEQUENCES),
        "unmatched": sender.send(joined=True),
        "one token": sender.send(token_ids=[np.zeros(1, int)] * SEQUENCES, **first),
    }


def test_what_has_no_valid_token_has_no_value(told: Told) -> None:
    steps, (metrics, status) = told.sent["nothing valid"], told.of("nothing valid")
    coverage = {"masked": None, "nothing": None, "all NaN": 0, "unmatched": 0}
    for name, expected in coverage.items():
        found = metrics[steps[name]]
        known = {key for key, value in found.items() if value is not None and key.startswith("backend.")}
        counts = ("coverage", "nonfinite_tokens", "impossible_tokens", "clamped_tokens")
        assert known <= {f"backend.{key}" for key in counts}
        assert found["backend.coverage"] == expected
    assert metrics[steps["all NaN"]]["backend.nonfinite_tokens"] == 32
    assert metrics[steps["one token"]]["backend.k3_kl"] > 0
    assert metrics[steps["one token"]]["backend.calibration_z"] is None  # all alike have no standard error
    assert status["measured"]["measured_tokens"] == SEQUENCES
    assert "4 of 18 sequences with neither received nor recorded rollout log-probs" in told.doctor


def send_other_tokens(sender: Sender) -> int:
    _, rollout = logprobs()
    step = sender.send(ids=["short", "other", "same", "lost"], joined=True)
    assert sender.recorder.rollout(
        sample_ids=["short", "other", "same"],
        token_ids=[np.arange(5), np.arange(TOKENS) + 1, np.arange(TOKENS)],
        logprobs=[rollout[0][:5], rollout[1], rollout[2]],
        weight_version=["not stated", "7", "7"],
    )
    return step


def test_the_two_sides_disagree_about_the_tokens(told: Told) -> None:
    found = told.of("other tokens")[0][told.sent["other tokens"]]
    # "short" as far as it goes, "same"
    assert found["backend.coverage"] == pytest.approx((5 + TOKENS) / (SEQUENCES * TOKENS))
    assert found["token_mismatch_frac"] == pytest.approx(1 / 3)
    assert found["length_mismatch_frac"] == pytest.approx(1 / 3)
    assert found["weight_lag_mean"] is None  # the rest would be lag 0
    assert "1 of 4 sequences with tokens that differ from the engine's" in told.doctor
    assert "1 of 4 sequences without a rollout record; unknown: weight lag" in told.doctor


SENT: dict[str, Callable[[Sender], Any]] = {
    "broken": send_broken, "nothing valid": send_nothing_valid, "other tokens": send_other_tokens,
}  # fmt: skip
