"""GRPO in torch: group-normalised advantages, the clipped objective and one optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from policy import answer_logits
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import Qwen3ForCausalLM

MINIBATCHES: Final = 4
CLIP: Final = 0.2
MAX_GRAD_NORM: Final = 1.0
WARMUP_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer on its way through the trainer."""

    sample_id: str
    group_id: str
    task: str
    prompt_ids: list[int]
    token_ids: list[int]
    rollout_logprobs: list[float]  # r
    reward: float
    correct: bool


@dataclass(frozen=True, slots=True)
class Scores:
    """What one set of weights says about sampled tokens; tensors are flat over the tokens of all samples, in order."""

    logprobs: Tensor  # float32 [tokens]
    entropy: Tensor  # float32 [tokens], nats


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one training step produced."""

    current_logprobs: Tensor  # c: float32 [tokens], in the order of the samples
    loss: float
    grad_norm: float
    clip_fraction: float


def advantages(samples: Sequence[Sample]) -> list[float]:
    """Reward minus the group's mean, over the group's standard deviation; 0 where a whole group got the same."""
    rewards: dict[str, list[float]] = {}
    for sample in samples:
        rewards.setdefault(sample.group_id, []).append(sample.reward)
    moments = {group: torch.std_mean(torch.tensor(values, dtype=torch.float64)) for group, values in rewards.items()}
    return [float((s.reward - moments[s.group_id][1]) / (moments[s.group_id][0] + 1e-6)) for s in samples]


class Rounded(TorchFunctionMode):
    """Linear layers as hardware of a narrower type computes them: operands, results and gradients rounded, sums in float32.

    Autocast does the same arithmetic, forty times as slowly on a CPU without instructions for bfloat16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch for each of its functions inside the context."""
        if func is not torch.nn.functional.linear:
            return func(*args, **(kwargs or {}))
        operands = [None if each is None else self._rounded(each) for each in (*args, *(kwargs or {}).values())]
        return self._rounded(torch.nn.functional.linear(*operands))

    def _rounded(self, values: Tensor) -> Tensor:
        return values.to(self._dtype).to(values.dtype)


class Trainer:
    """Holds the policy that learns.

    Args:
        model: the policy, float32.
        temperature: what logits are divided by before the softmax: the trainer's idea of how the engine samples.
        learning_rate: of AdamW, reached after `WARMUP_STEPS`.
        dtype: of matrix products; weights, normalisation, attention and softmax stay in float32.
    """

    def __init__(
        self, model: Qwen3ForCausalLM, *, temperature: float, learning_rate: float, dtype: str = "float32"
    ) -> None:
        self.model = model
        self._products = nullcontext() if dtype == "float32" else Rounded(getattr(torch, dtype))
        self._temperature = temperature
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        self._schedule = torch.optim.lr_scheduler.LinearLR(
            self._optimizer, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS - 1
        )

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self._schedule.get_last_lr()[0])

    @torch.no_grad()
    def score(self, samples: Sequence[Sample]) -> Scores:
        """T and the entropy, under the weights as they are now."""
        return self._scores(samples)

    def train(
        self, samples: Sequence[Sample], advantage: Sequence[float], factors: Sequence[Tensor] | None = None
    ) -> Outcome:
        """One pass over the batch in `MINIBATCHES` optimizer steps.

        The behaviour policy of the ratio is r, what the engine reported, as in PipelineRL; so a wrong r does harm here. `factors`: what
        multiplies each token's loss, float32 [tokens] per sample; None: nothing does. Dropped tokens stay in the mean's denominator.
        """
        current: dict[int, Tensor] = {}
        losses, norms, clipped = [], [], []
        for indices in torch.randperm(len(samples)).chunk(MINIBATCHES):
            chosen = sorted(indices.tolist())
            picked = [samples[index] for index in chosen]
            logprobs = self._scores(picked).logprobs
            factor = None if factors is None else torch.cat([factors[index] for index in chosen])
            loss, clip = _clipped_loss(logprobs, picked, [advantage[index] for index in chosen], factor)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM).item())
            self._optimizer.step()
            losses.append(loss.item())
            clipped.append(clip)
            pieces = logprobs.detach().split([len(sample.token_ids) for sample in picked])
            current.update(zip(chosen, pieces, strict=True))
        self._schedule.step()
        ordered = torch.cat([current[index] for index in range(len(samples))])
        return Outcome(ordered, _mean(losses), _mean(norms), _mean(clipped))

    def _scores(self, samples: Sequence[Sample]) -> Scores:
        answers = [sample.token_ids for sample in samples]
        with self._products:
            logits = answer_logits(self.model, [sample.prompt_ids for sample in samples], answers)
        distribution = torch.log_softmax(logits / self._temperature, dim=-1)
        tokens = torch.tensor([token for answer in answers for token in answer])
        entropy = -(distribution.detach().exp() * distribution.detach()).sum(-1)
        return Scores(distribution.gather(1, tokens[:, None])[:, 0], entropy)


def _clipped_loss(
    logprobs: Tensor, samples: Sequence[Sample], advantage: Sequence[float], factor: Tensor | None
) -> tuple[Tensor, float]:
    """PPO's clipped objective, mean over tokens; and how often clipping decided."""
    rollout = torch.tensor([value for sample in samples for value in sample.rollout_logprobs])
    lengths = torch.tensor([len(sample.token_ids) for sample in samples])
    weight = torch.tensor(advantage, dtype=torch.float32).repeat_interleave(lengths)
    ratio = torch.exp(torch.clamp(logprobs - rollout, -20.0, 20.0))
    plain, clipped = ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight
    gain = torch.minimum(plain, clipped)
    return -(gain if factor is None else gain * factor).mean(), (clipped < plain).float().mean().item()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
