"""A small policy that learns by policy gradient: a recurrent network writes six digits that follow from three, and a program checks them.

Nothing here is simulated: answers are sampled from weights rounded to bfloat16, as an engine would hold them, and scored again in
float32, so the mismatch is real, and so is what it does to learning.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

DIGITS: Final = 10
ASKED: Final = 3
ANSWERED: Final = 6
PROMPTS: Final = 16
ANSWERS: Final = 8
LEARNING_RATE: Final = 3e-4
MAX_GRAD_NORM: Final = 1.0
PRETRAINED: Final = 0.42  # mean reward at which learning by reward begins
_HIDDEN: Final = 96
_START: Final = DIGITS  # the token that asks for the first digit of an answer
_RULES: Final = (
    (1, 0, 0),
    (0, 1, 0),
    (0, 0, 1),
    (1, 1, 0),
    (0, 1, 1),
    (1, 0, 1),
)  # digit = sum of rule × question, modulo 10


class Policy(nn.Module):
    """Logits of the next digit after a question and the digits written so far."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(DIGITS + 1, _HIDDEN)
        self.places = nn.Parameter(torch.randn(ASKED + ANSWERED, _HIDDEN) * 0.1)
        self.memory = nn.GRU(_HIDDEN, _HIDDEN, batch_first=True)
        self.head = nn.Sequential(nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, DIGITS))

    def forward(self, questions: Tensor, answers: Tensor) -> Tensor:
        """Log-probs of the next digit at each place of the answer, float32 [batch, ANSWERED, DIGITS]. Both int64, [batch, time]."""
        start = torch.full((len(questions), 1), _START)
        inputs = self.tokens(torch.cat([questions, start, answers[:, :-1]], 1)) + self.places
        hidden, _ = self.memory(inputs)
        return torch.log_softmax(self.head(hidden[:, ASKED:]), -1)

    @torch.no_grad()
    def sample(
        self, questions: Tensor, generator: torch.Generator, *, noise: float = 0.0, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Answers, int64 [batch, ANSWERED], and their log-probs, float32 of the same shape.

        `noise`: standard deviation of what is added to each logit. `temperature`: that logits are divided by.
        """
        answers = torch.zeros(len(questions), ANSWERED, dtype=torch.int64)
        logprobs = torch.zeros(len(questions), ANSWERED)
        inputs = torch.cat([self.tokens(questions), self.tokens(torch.full((len(questions), 1), _START))], 1)
        hidden, state = self.memory(inputs + self.places[: ASKED + 1])
        for place in range(ANSWERED):
            logits = self.head(hidden[:, -1])
            if noise:
                logits = logits + noise * torch.randn(logits.shape, generator=generator)
            known = (logits / temperature).log_softmax(-1)
            answers[:, place] = torch.multinomial(known.exp(), 1, generator=generator)[:, 0]
            logprobs[:, place] = known.gather(1, answers[:, place, None])[:, 0]
            if place + 1 < ANSWERED:
                given = self.tokens(answers[:, place, None]) + self.places[ASKED + place + 1]
                hidden, state = self.memory(given, state)
        return answers, logprobs


def solution(questions: Tensor) -> Tensor:
    """The right answers, int64 [batch, ANSWERED]."""
    return questions @ torch.tensor(_RULES).T % DIGITS


def rewards(questions: Tensor, answers: Tensor) -> Tensor:
    """Share of the digits that are right, float32 [batch]."""
    return (answers == solution(questions)).float().mean(1)


def pretrained(seed: int) -> Policy:
    """A policy that gets about `PRETRAINED` of the digits right, by imitation."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    while True:
        questions = torch.randint(DIGITS, (256, ASKED), generator=generator)
        answers = solution(questions)
        loss = -policy(questions, answers).gather(2, answers[..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rewards(questions, policy.sample(questions, generator)[0]).mean() >= PRETRAINED:
            return policy


class Fault(NamedTuple):
    """How an engine samples a step."""

    lag: int = 1  # versions behind the trainer
    noise: float = 0.0  # standard deviation of what is added to its logits: other tokens, with their right log-probs
    temperature: float = 1.0  # that it samples with, and of which the trainer knows nothing
    blur: float = (
        0.0  # standard deviation of what is added to its log-probs alone: the right tokens, with wrong log-probs
    )


@dataclass(frozen=True)
class Batch:
    """Answers of one step, a group of `ANSWERS` for each question. `lag`: versions behind the trainer that sampled them."""

    questions: Tensor
    answers: Tensor
    rollout: Tensor  # log-probs as the engine has them
    trainer: Tensor  # … as the trainer has them, before its update
    rewards: Tensor
    advantages: Tensor
    lag: int


class Training:
    """Learns by reward: sampled by weights that may be old, advantages by group, one Adam step for each batch."""

    def __init__(self, seed: int, *, learning_rate: float = LEARNING_RATE) -> None:
        self._policy = pretrained(seed)
        self._engine = Policy()
        self._generator = torch.Generator().manual_seed(seed + 1)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=learning_rate)
        self._versions: deque[dict[str, Tensor]] = deque(maxlen=512)

    def batch(self, fault: Fault) -> Batch:
        """The answers of one step, as an engine with this fault samples them."""
        self._versions.append({name: value.bfloat16().float() for name, value in self._policy.state_dict().items()})
        lag = min(fault.lag, len(self._versions) - 1)
        self._engine.load_state_dict(self._versions[-1 - lag])
        asked = torch.randint(DIGITS, (PROMPTS, ASKED), generator=self._generator)
        questions = asked.repeat_interleave(ANSWERS, 0)
        answers, rollout = self._engine.sample(
            questions, self._generator, noise=fault.noise, temperature=fault.temperature
        )
        if fault.blur:
            rollout = rollout + fault.blur * torch.randn(rollout.shape, generator=self._generator)
        with torch.no_grad():
            trainer = self._policy(questions, answers).gather(2, answers[..., None])[..., 0]
        earned = rewards(questions, answers)
        groups = earned.view(PROMPTS, ANSWERS)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        return Batch(questions, answers, rollout, trainer, earned, advantages.flatten(), lag)

    def update(self, batch: Batch, weights: Tensor | None = None) -> float:
        """One optimizer step; returns the gradient norm before clipping. `weights`: of the tokens, [batch, ANSWERED]."""
        current = self._policy(batch.questions, batch.answers).gather(2, batch.answers[..., None])[..., 0]
        gain = current * batch.advantages[:, None]
        loss = -(gain if weights is None else gain * weights).mean()
        self._optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._policy.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        return float(norm)
