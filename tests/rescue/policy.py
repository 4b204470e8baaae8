"""The demo's policy, sampled by an engine with a fault."""

from __future__ import annotations

from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from logprobe.app.demo import policy
from logprobe.app.demo.policy import ANSWERS, Batch, Floats, Tokens, Weights, sample

__all__ = ["ANSWERS", "Batch", "Fault", "Training"]


class Fault(NamedTuple):
    """How an engine samples a step."""

    lag: int = 1  # versions behind the trainer
    noise: float = 0.0  # standard deviation of what is added to its logits: other tokens, with their right log-probs
    temperature: float = 1.0  # that it samples with, and of which the trainer knows nothing
    blur: float = (
        0.0  # standard deviation of what is added to its log-probs alone: the right tokens, with wrong log-probs
    )


class Training(policy.Training):
    """Learns by reward, from answers of an engine that may have a fault."""

    def faulty(self, fault: Fault) -> Batch:
        """The answers of one step, as an engine with this fault samples them."""
        right = policy._logprobs

        def logprobs(weights: Weights, hidden: Floats) -> tuple[Floats, Floats]:
            logits, middle = right(weights, hidden)
            logits = (logits + fault.noise * self._rng.standard_normal(logits.shape)) / fault.temperature
            return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), middle

        def sampled(weights: Weights, questions: Tokens, rng: np.random.Generator) -> tuple[Tokens, Floats]:
            with patch.object(policy, "_logprobs", logprobs):
                answers, rollout = sample(weights, questions, rng)
            return answers, (rollout + fault.blur * rng.standard_normal(rollout.shape)).astype(np.float32)

        with patch.object(policy, "sample", sampled):
            return self.batch(fault.lag)
