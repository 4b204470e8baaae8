"""The demo's policy in numpy is that of `make campaign NAME=rescue` in torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rescue.policy import Policy


@pytest.fixture
def demo(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("rescue_policy", repository / "app" / "demo" / "policy.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rescue_policy", module)
    spec.loader.exec_module(module)
    return module


# Of torch's layers, and the demo's arrays transposed.
LAYERS = {
    "tokens.weight": "tokens", "places": "places", "memory.weight_ih_l0": "input", "memory.bias_ih_l0": "input_bias",
    "memory.weight_hh_l0": "memory", "memory.bias_hh_l0": "memory_bias", "head.0.weight": "middle", "head.0.bias": "middle_bias",
    "head.2.weight": "head", "head.2.bias": "head_bias",
}  # fmt: skip


def as_torch(name: str, values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values if name in {"tokens.weight", "places"} else values.T.copy())


def test_the_demos_policy_has_the_log_probs_and_gradients_of_torch(demo: ModuleType) -> None:
    rng = np.random.default_rng(0)
    weights, questions = demo.Weights.random(rng), rng.integers(10, size=(32, 3))
    theirs = Policy()
    theirs.load_state_dict({name: as_torch(name, weights.of[ours]) for name, ours in LAYERS.items()})
    answers, sampled = demo.sample(weights, questions, rng)
    scored, gains = demo.Pass(weights, questions, answers), rng.normal(size=answers.shape).astype(np.float32)
    tokens = torch.tensor(answers)
    logprobs = theirs(torch.tensor(questions), tokens).gather(2, tokens[..., None])[..., 0]
    (-(logprobs * torch.tensor(gains)).mean()).backward()
    np.testing.assert_allclose(scored.logprobs, logprobs.detach(), atol=1e-5)
    np.testing.assert_allclose(sampled, scored.logprobs, atol=1e-5)
    gradient = scored.gradient(gains).of
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(as_torch(name, gradient[LAYERS[name]]), parameter.grad, atol=1e-6, rtol=1e-4)
    rounded = torch.tensor(weights.vector).bfloat16().float().numpy()
    np.testing.assert_array_equal(weights.rounded().vector, rounded)


def test_the_demos_optimizer_is_torchs(demo: ModuleType) -> None:
    rng = np.random.default_rng(0)
    weights = demo.Weights.random(rng)
    theirs = torch.nn.Parameter(torch.tensor(weights.vector))
    ours, reference = demo.Adam(weights, 1e-3), torch.optim.Adam([theirs], lr=1e-3)
    for _ in range(5):
        slope = rng.normal(size=weights.vector.shape).astype(np.float32)
        ours.step(slope)
        theirs.grad = torch.tensor(slope)
        reference.step()
    np.testing.assert_allclose(weights.vector, theirs.detach(), atol=1e-6)
