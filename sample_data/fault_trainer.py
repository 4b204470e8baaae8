"""The trainer of the fault fixtures: recomputes log-probs as a `View` says, and moves the weights by policy gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from fault_case import View
from fault_glue import Sample
from torch import Tensor
from transformers import PreTrainedModel

MAX_GRAD_NORM = 1.0


class Trainer:
    """Holds the policy that learns.

    Args:
        model: the policy, float32.
        temperature: of sampling.
        view: how log-probs are recomputed; learning itself is right, so that every run moves as a healthy one does.
        learning_rate: of AdamW.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, view: View, learning_rate: float) -> None:
        self.model = model
        self._temperature = temperature
        self._view = view
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    @torch.no_grad()
    def score(self, samples: Sequence[Sample]) -> list[Tensor]:
        """T of every sample, float32 [tokens], under the weights as they are now and as the view has it."""
        view = self._view
        model = self.model if view.dtype == "float32" else copy.deepcopy(self.model).to(getattr(torch, view.dtype))
        logits = _logits(model, samples, offset=view.offset, head_dtype=view.head_dtype).float()
        logits = logits / (self._temperature if view.temperature is None else view.temperature)
        if view.top_p < 1:
            logits = _nucleus(logits, view.top_p)
        if view.padded_to is not None:
            logits = torch.nn.functional.pad(logits, (0, view.padded_to - logits.shape[-1]))
        return _gather(logits, samples)

    def learn(self, samples: Sequence[Sample], rewards: Sequence[float]) -> dict[str, float]:
        """One step of the policy gradient with rewards normalised over the batch; its scalars."""
        logprobs = torch.cat(_gather(_logits(self.model, samples) / self._temperature, samples))
        reward = torch.tensor(rewards)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        lengths = torch.tensor([len(sample.token_ids) for sample in samples])
        loss = -(advantage.repeat_interleave(lengths) * logprobs).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM).item()
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": norm, "learning_rate": self.optimizer.param_groups[0]["lr"]}

    def jump(self, factor: float) -> None:
        """Multiplies the learning rate, as somebody does who edits the configuration of a running job."""
        self.optimizer.param_groups[0]["lr"] *= factor


def _logits(
    model: PreTrainedModel, samples: Sequence[Sample], *, offset: int = 0, head_dtype: str | None = None
) -> Tensor:
    """Logits that predict each answer token, [answer tokens of all samples, vocabulary], in order.

    Padding stands at the right of a causal model, where no answer can see it, so no attention mask is needed.
    """
    inputs = [torch.tensor([*sample.prompt_ids, *sample.token_ids]) for sample in samples]
    padded = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
    hidden = model.model(input_ids=padded, use_cache=False).last_hidden_state
    rows = [
        hidden[index, len(sample.prompt_ids) - 1 + offset :][: len(sample.token_ids)]
        for index, sample in enumerate(samples)
    ]
    flat, head = torch.cat(rows), model.lm_head.weight
    if head_dtype is None:
        return flat @ head.T
    dtype = getattr(torch, head_dtype)
    return flat.to(dtype) @ head.to(dtype).T


def _gather(logits: Tensor, samples: Sequence[Sample]) -> list[Tensor]:
    tokens = torch.tensor([token for sample in samples for token in sample.token_ids])
    chosen = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
    return list(chosen.split([len(sample.token_ids) for sample in samples]))


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """`logits` with −inf outside the smallest set of tokens that holds `top_p` of the probability."""
    ordered, order = logits.softmax(-1).sort(dim=-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return logits.masked_fill(outside.gather(-1, order.argsort(-1)), -torch.inf)
