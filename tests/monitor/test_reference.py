"""KL to a reference policy and to a teacher: from the call to metrics, tokens and what other frameworks would log of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_home import take_in

from logprobe.collectors import Recorder
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.home import Home
from logprobe.monitor.peers import view
from logprobe.monitor.store.store import Store

RNG = np.random.default_rng(7)
TRAINER = [(-RNG.exponential(1.0, n)).astype(np.float32) for n in (9, 30, 4)]
REFERENCE = [(t - RNG.normal(0.05, 0.3, len(t))).clip(max=0).astype(np.float32) for t in TRAINER]
CURRENT = [(t + RNG.normal(0.0, 0.05, len(t))).clip(max=0).astype(np.float32) for t in TRAINER]
CALL: dict[str, Any] = {
    "sample_ids": ["a", "b", "c"],
    "token_ids": [np.arange(len(t)) for t in TRAINER],
    "trainer_logprobs": TRAINER,
    "rollout_logprobs": TRAINER,
    "reference_logprobs": REFERENCE,
}


def d_of(reference: list[Any] = REFERENCE, policy: list[Any] = TRAINER) -> np.ndarray:
    return (np.concatenate(reference).astype(np.float64) - np.concatenate(policy)).astype(np.float64)


def recorded(home: Path, **settings: Any) -> Recorder:
    return Recorder(home, "run", rank=0, **settings)


def settled(home: Path, recorder: Recorder, pair: str = "reference") -> dict[str, float | None]:
    assert recorder.flush()
    recorder.close()
    with Store.open(Home(home)) as store:
        take_in(store)
        rows = store.query("SELECT metric, value FROM metrics WHERE metric LIKE ?", [f"{pair}.%"]).to_pylist()
    return {row["metric"].removeprefix(f"{pair}."): row["value"] for row in rows}


@pytest.mark.parametrize("pair", ["reference", "teacher"])
@pytest.mark.parametrize("fraction", [1.0, 0.0], ids=["raw tokens", "statistics made at the edge"])
def test_from_the_call_to_the_metrics(home: Path, fraction: float, pair: str) -> None:
    recorder = recorded(home, raw_fraction=fraction, worst_sequences=0)
    call = {f"{pair}_logprobs" if name == "reference_logprobs" else name: value for name, value in CALL.items()}
    assert recorder.training(step=1, **call)
    values = settled(home, recorder, pair)
    d = d_of()
    assert values["kl"] == pytest.approx(-d.mean())
    assert values["k3_kl"] == pytest.approx((np.exp(d) - d - 1).mean())
    assert values["logprob_abs_diff_max"] == pytest.approx(np.abs(d).max())
    assert (values["coverage"], values["impossible_tokens"], values["nonfinite_tokens"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("values", "broken"),
    [
        (np.nan, "nonfinite_tokens"),
        (-9999.0, "impossible_tokens"),
        (0.5, "impossible_tokens"),
        (0.0, "impossible_tokens"),
    ],
)
def test_an_array_that_nobody_filled_is_broken_and_not_close(home: Path, values: float, broken: str) -> None:
    recorder = recorded(home)
    assert recorder.training(step=1, **{**CALL, "reference_logprobs": [np.full(len(t), values) for t in TRAINER]})
    found = settled(home, recorder)
    unlikely = int((np.concatenate(TRAINER) < -1).sum()) if values == 0 else 43
    assert found[broken] == unlikely
    assert found["coverage"] == pytest.approx(1 - unlikely / 43)
    assert (found["k3_kl"] is None) == (unlikely == 43)


def test_tokens_and_other_frameworks_numbers(home: Path) -> None:
    recorder = recorded(home)
    assert recorder.training(step=1, **CALL, current_logprobs=CURRENT, teacher_logprobs=CURRENT)
    settled(home, recorder)
    with Store.open(Home(home)) as store:
        tokens = store.query("SELECT reference_logprob, teacher_logprob FROM tokens ORDER BY sample_id, position")
    assert tokens["reference_logprob"].to_pylist() == np.concatenate(REFERENCE).tolist()
    assert tokens["teacher_logprob"].to_pylist() == np.concatenate(CURRENT).tolist()


def test_a_distillation_by_hand(home: Path) -> None:
    """d = teacher − trainer: −0.5, 0.25 and 0. What the student's advantage is made of is −`kl`."""
    recorder = recorded(home)
    sides = {"trainer_logprobs": [[-1.0, -1.0, -2.0]], "teacher_logprobs": [[-1.5, -0.75, -2.0]]}
    assert recorder.training(step=1, sample_ids=["a"], token_ids=[[1, 2, 3]], **sides)
    found = settled(home, recorder, "teacher")
    assert found["kl"] == pytest.approx((0.5 - 0.25) / 3)
    assert found["k3_kl"] == pytest.approx((np.exp(-0.5) + 0.5 - 1 + np.exp(0.25) - 0.25 - 1) / 3)
    assert found["reverse_kl"] == pytest.approx(
        (-0.5 * np.exp(-0.5) - np.exp(-0.5) + 1 + 0.25 * np.exp(0.25) - np.exp(0.25) + 1) / 3
    )
    assert found["identical_frac"] == pytest.approx(1 / 3)


def k3(d: np.ndarray) -> np.ndarray:
    return np.exp(d) - d - 1


def test_what_trl_and_verl_would_log() -> None:
    def seen(peer: str, **options: Any) -> Any:
        return view(peer, TRAINER, TRAINER, current_logprobs=CURRENT, reference_logprobs=REFERENCE, **options)

    of_current, of_old = d_of(policy=CURRENT), d_of()
    assert seen("trl", use_bias_correction_kl=False)["kl"] == pytest.approx(k3(of_current).mean(), rel=1e-5)
    ratio = np.exp(d_of(CURRENT, TRAINER))
    assert seen("trl")["kl"] == pytest.approx((k3(of_current) * ratio).mean(), rel=1e-5)
    assert seen("verl")["actor/kl_loss"] == pytest.approx(k3(of_current).mean(), rel=1e-5)
    sequences = np.split(of_old, [9, 39])
    by_sequence = np.mean([-d.mean() for d in sequences])
    assert seen("verl")["actor/reward_kl_penalty"] == pytest.approx(by_sequence, rel=1e-5)
    squares = np.mean([np.square(d).mean() / 2 for d in sequences])
    assert seen("verl", kl_penalty="k2")["actor/reward_kl_penalty"] == pytest.approx(squares, rel=1e-5)
    assert "kl" not in view("trl", TRAINER, TRAINER)
    with pytest.raises(LogprobeError, match="kl_penalty"):
        seen("verl", kl_penalty="full")
