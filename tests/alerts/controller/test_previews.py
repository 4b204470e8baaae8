"""What a preview says of K3, ESS and lengths: plain formulas on planted tokens."""

from __future__ import annotations

import numpy as np
import pytest

from logprobe.alerts.controller import gather
from logprobe.collectors.correction import CorrectionConfig

TOKENS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=2.0)
SEQUENCES = CorrectionConfig(rs_level="geometric", rs_lower=0.8, rs_upper=1.25)
TRUNCATED = CorrectionConfig(is_level="token", is_upper=2.0)
LENGTHS = (10, 20, 40, 80)
FAR = 1.0  # log-ratio of every second token of the long half; of others it is 0.01


def planted(far: tuple[int, ...]) -> gather._Columns:
    """Answers of four lengths; those in `far` are far from the trainer, by 1 and −1 in turn."""
    ratios = [np.where(np.arange(n) % 2, 1, -1) * (FAR if n in far else 0.01) for n in LENGTHS]
    rollout = [np.full(n, -2.0) for n in LENGTHS]
    return gather._Columns(
        rollout=rollout,
        trainer=[r + d for r, d in zip(rollout, ratios, strict=True)],
        mask=[np.ones(n) for n in LENGTHS],
        advantage=[np.ones(n) for n in LENGTHS],
        complete=True,
    )


def k3(d: float) -> float:
    return float(np.expm1(d) - d + np.expm1(-d) + d) / 2


@pytest.mark.parametrize(
    ("far", "config", "masked", "length", "kept_k3"),
    [
        ((40, 80), TOKENS, 120 / 150, 15.0, k3(0.01)),  # long answers are dropped
        ((10, 20), TOKENS, 30 / 150, 60.0, k3(0.01)),
        ((40, 80), TRUNCATED, 0.0, 37.5, (120 * k3(FAR) + 30 * k3(0.01)) / 150),  # nothing is dropped
        ((), TOKENS, 0.0, 37.5, k3(0.01)),
    ],
)
def test_what_it_keeps(
    far: tuple[int, ...], config: CorrectionConfig, masked: float, length: float, kept_k3: float
) -> None:
    made = gather._preview({7: planted(far)}, config)
    assert made is not None
    assert made.masked_tokens == pytest.approx(masked)
    assert (made.length, made.kept_length) == (37.5, pytest.approx(length))
    assert made.kept_k3 == pytest.approx(kept_k3, rel=1e-4)
    n = sum(each for each in LENGTHS if each in far)
    assert made.k3 == pytest.approx((n * k3(FAR) + (150 - n) * k3(0.01)) / 150, rel=1e-4)
    assert f"mean length 37.5 → {length:.3g})" in made.words
    assert made.words.startswith(f"it would mask {masked:.1%} of the tokens (K3 ")


def test_a_sequence_counts_by_its_share_of_kept_tokens() -> None:
    columns = planted(())
    columns.trainer[0][:5] += FAR
    made = gather._preview({7: columns}, TOKENS)
    assert made is not None
    assert made.kept_length == pytest.approx((5 + 20 + 40 + 80) / 3.5)


def test_what_is_all_dropped_has_no_length() -> None:
    made = gather._preview({7: planted(LENGTHS)}, TOKENS)
    assert made is not None
    assert (made.kept_length, made.kept_k3, made.length) == (None, None, 37.5)
    assert "mean length" not in made.words


def test_a_rejected_sequence_is_dropped_whole() -> None:
    columns = planted(())
    columns.trainer[3] += FAR
    made = gather._preview({7: columns}, SEQUENCES)
    assert made is not None
    assert (made.masked_sequences, made.kept_length) == (0.25, pytest.approx(70 / 3))
