"""Frame of a simulated policy: random logits, tokens really drawn from them, and any fault as a function of the logits.

Every answer of a prompt starts from the same logits, as in a real run; later tokens have contexts of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from run_columns import Columns

from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.records import Weights
from logprobe.monitor.judging.setup import Setup

Logits = np.ndarray  # [contexts, V]


def log_softmax(z: Logits) -> Logits:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def tempered(temperature: float) -> Callable[[Logits], Logits]:
    return lambda z: log_softmax(z / temperature)


def nucleus(top_p: float) -> Callable[[Logits], Logits]:
    def of(z: Logits) -> Logits:
        p = np.exp(log_softmax(z))
        order = np.argsort(-p, axis=-1)
        before = np.cumsum(np.take_along_axis(p, order, -1), -1) - np.take_along_axis(p, order, -1)
        kept = np.zeros(z.shape, bool)
        np.put_along_axis(kept, order, before < top_p, -1)
        return log_softmax(np.where(kept, z, -1e9))

    return of


def padded(rows: int) -> Callable[[Logits], Logits]:
    return lambda z: log_softmax(np.concatenate([z, np.zeros((*z.shape[:-1], rows))], -1))[..., : z.shape[-1]]


def rounded(z: Logits) -> Logits:
    """To bfloat16, as its bits say."""
    return ((z.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32).astype(float)


def noisy(size: float, seed: int = 1) -> Callable[[Logits], Logits]:
    """Other logits for every context."""
    rng = np.random.default_rng(seed)
    return lambda z: log_softmax(z + rng.normal(0, size, z.shape))


def drift(size: Any, shape: tuple[int, ...], seed: int = 5) -> Logits:
    """Normal log-ratios of this standard deviation with E[ρ] = 1: of log-probs that belong to what was sampled from."""
    return np.random.default_rng(seed).normal(0, 1, shape) * size - np.square(size) / 2


ANSWERS = 4


@dataclass
class Simulation:
    """A run. `engine` samples from `sampled` of the logits and reports `reported`; `trained` is the trainer's; all [contexts, V] → the same."""

    steps: int = 12
    prompts: int = 8
    length: int = 16
    vocabulary: int = 64
    seed: int = 0
    spread: float = 3.0
    sampled: Callable[[Logits], Logits] = log_softmax
    reported: Callable[[Logits], Logits] | None = None
    trained: Callable[[Logits], Logits] = log_softmax
    first_trained: int = 0  # before this step the trainer agrees
    change: Callable[[Columns], None] = lambda columns: None
    setup: Setup = field(default_factory=Setup)
    weights: Weights = field(default_factory=Weights)
    keep_tokens: bool = True

    @property
    def sequences(self) -> int:
        return self.steps * self.prompts * ANSWERS

    def columns(self) -> Columns:
        rng = np.random.default_rng(self.seed)
        shape = (self.sequences, self.length)
        step = np.repeat(np.arange(self.steps), self.prompts * ANSWERS)
        context = np.arange(self.sequences) // ANSWERS
        token, r, t = np.zeros(shape, int), np.zeros(shape), np.zeros(shape)
        for place in range(self.length):
            contexts, index = np.unique(context, return_inverse=True)
            z = rng.normal(0, self.spread, (len(contexts), self.vocabulary))
            q, reported, trained = self.sampled(z), (self.reported or self.sampled)(z), self.trained(z)
            token[:, place] = (q[index] + rng.gumbel(size=(self.sequences, self.vocabulary))).argmax(-1)
            r[:, place] = reported[index, token[:, place]]
            t[:, place] = np.where(step < self.first_trained, r[:, place], trained[index, token[:, place]])
            context = index * self.vocabulary + token[:, place]
        columns = Columns(
            step=step,
            token=token,
            r=r.astype(np.float32),
            t=t.astype(np.float32),
            mask=np.ones(shape, bool),
            group=np.arange(self.sequences) // ANSWERS,
            version=np.repeat(step[:, None], self.length, 1).astype(float),
            trainer_version=step.copy(),
        )
        self.change(columns)
        return columns

    def frame(self) -> Frame:
        return self.columns().frame(setup=self.setup, kept=self.keep_tokens, weights=self.weights)
