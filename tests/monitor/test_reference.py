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


@pytest.mark.parametrize("fraction", [1.0, 0.0], ids=["raw tokens", "statistics made at the edge"])
def test_from_the_call_to_the_metrics_and_tokens(home: Path, fraction: float) -> None:
    with Recorder(home, "run", rank=0, raw_fraction=fraction, worst_sequences=0) as recorder:
        assert recorder.training(step=1, **CALL, teacher_logprobs=CURRENT)
    with Store.open(Home(home)) as store:
        take_in(store)
        values = {row["metric"]: row["value"] for row in store.query("SELECT metric, value FROM metrics").to_pylist()}
        tokens = store.query("SELECT reference_logprob, teacher_logprob FROM tokens ORDER BY sample_id, position")
    for pair, side in (("reference", REFERENCE), ("teacher", CURRENT)):
        d = d_of(side)
        assert values[f"{pair}.kl"] == pytest.approx(-d.mean())
        assert values[f"{pair}.k3_kl"] == pytest.approx(k3(d).mean())
        assert values[f"{pair}.logprob_abs_diff_max"] == pytest.approx(np.abs(d).max())
        counts = ("coverage", "impossible_tokens", "nonfinite_tokens")
        assert [values[f"{pair}.{name}"] for name in counts] == [1, 0, 0]
        assert tokens[f"{pair}_logprob"].to_pylist() == (np.concatenate(side).tolist() if fraction else [])


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
