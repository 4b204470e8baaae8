"""The demo's policy: its gradient is the slope of its log-probs, and its optimizer is torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logprobe.app.demo.policy import Adam, Pass, Weights, sample


def test_the_gradient_is_the_slope_of_the_log_probs() -> None:
    """In directions drawn at random, and in each layer alone; in float64, where a difference has its digits."""
    rng = np.random.default_rng(0)
    weights, questions = Weights.random(rng), rng.integers(10, size=(32, 3))
    answers, sampled = sample(weights, questions, rng)
    gains = rng.normal(size=answers.shape)
    np.testing.assert_allclose(sampled, Pass(weights, questions, answers).logprobs, atol=1e-5)
    weights = Weights(weights.vector.astype(np.float64))
    slope = Pass(weights, questions, answers).gradient(gains)

    def loss(moved: np.ndarray) -> float:
        return float(-(Pass(Weights(moved), questions, answers).logprobs * gains).mean())

    for name in (*weights.of, "all"):
        direction = Weights(np.zeros_like(weights.vector))
        for part in direction.of if name == "all" else (name,):
            direction.of[part][...] = rng.standard_normal(direction.of[part].shape)
        step = 1e-7 * direction.vector
        found = (loss(weights.vector + step) - loss(weights.vector - step)) / 2e-7
        assert float(slope.vector @ direction.vector) == pytest.approx(found, rel=1e-4, abs=1e-6), name


def test_the_optimizer_and_the_rounding_are_torchs() -> None:
    rng = np.random.default_rng(0)
    weights = Weights.random(rng)
    rounded = torch.tensor(weights.vector).bfloat16().float().numpy()
    np.testing.assert_array_equal(weights.rounded().vector, rounded)
    theirs = torch.nn.Parameter(torch.tensor(weights.vector))
    ours, reference = Adam(weights, 1e-3), torch.optim.Adam([theirs], lr=1e-3)
    for _ in range(5):
        slope = rng.normal(size=weights.vector.shape).astype(np.float32)
        ours.step(slope)
        theirs.grad = torch.tensor(slope)
        reference.step()
    np.testing.assert_allclose(weights.vector, theirs.detach(), atol=1e-6)
