"""Requests of an engine that keeps sampling while a trainer trains: what is dropped by which rule, and what is trained.

Answers have lengths of a log-normal distribution; a longer one takes longer, and its weights are older when it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from logprobe.monitor.judging.discarding import Sampled

UPDATE = 10.0  # seconds from one weight version to the next
SPEED = 30.0  # tokens in a second
LONGEST = 1200
LIMIT = 2  # versions


@dataclass(frozen=True)
class Requests:
    """`rule`: what drops requests, a method of this class; `versions`, `rewards`: whether they are recorded; `missing`: trained
    sequences without a rollout record; `waiting`: newest requests that are not trained yet; `slow`: times that an evaluation's requests take."""

    rule: str = "nothing"
    size: int = 3000
    answers: int = 8
    seed: int = 0
    spread: float = 0.7
    jitter: float = 0.3  # of a request's speed
    versions: bool = True
    rewards: bool = False
    missing: int = 0
    waiting: int = 0
    slow: float = 1.0

    def sampled(self) -> Sampled:
        rng = self.rng
        hard = np.repeat(rng.standard_normal(self.size // self.answers + 1), self.answers)[: self.size]
        tokens = np.exp(5.3 + self.spread * (0.5 * hard + rng.standard_normal(self.size))).clip(1, LONGEST).round()
        if self.slow > 1:
            tokens[self.evaluated] *= 2
        begun = np.arange(self.size) * 0.3
        done = begun + tokens / SPEED * np.exp(self.jitter * rng.standard_normal(self.size))
        done[self.evaluated] += (done - begun)[self.evaluated] * (self.slow - 1)
        if self.rule == "late_of_any_length":
            done = begun + 12 * np.exp(0.7 * rng.standard_normal(self.size))
        first, last = np.floor(begun / UPDATE), np.floor(done / UPDATE)
        gone = getattr(self, self.rule)(tokens, last - first, hard)
        trained_at = np.where(gone, np.nan, done + rng.uniform(5, 15, self.size))
        order = np.argsort(done)
        prompt = np.arange(self.size) // self.answers
        if self.waiting:
            trained_at[order[-self.waiting :]] = np.nan
        known = np.where(self.versions, 0.0, np.nan)
        reward = np.where(gone & (not self.rewards), np.nan, (hard + rng.standard_normal(self.size) < 0) * 1.0)
        columns = {
            "time": done, "tokens": tokens, "prompt": prompt, "entropy": 0.5 + 0.1 * hard, "reward": reward,
            "first": first + known, "last": last + known, "trained_at": trained_at,
        }  # fmt: skip
        until = float(np.nanmax(trained_at))
        return Sampled(**{name: values[order] for name, values in columns.items()}, until=until, missing=self.missing)

    @cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @property
    def evaluated(self) -> np.ndarray:
        """Requests of one prompt in ten."""
        return np.arange(self.size) // self.answers % 10 == 0

    def nothing(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        return np.zeros(len(tokens), bool)

    def late(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """The trainer drops answers whose weights are too old when they are done."""
        return late > LIMIT

    def late_and_random(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        return self.late(tokens, late, hard) | self.random(tokens, late, hard)

    def late_of_any_length(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        return late > LIMIT

    def random(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        return self.rng.random(len(tokens)) < 0.3

    def groups(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """Dynamic sampling: prompts that are solved always or never are dropped; the hard ones have long answers."""
        return (hard < -1.5) | (hard > 0.3)

    def overlong(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """Truncated answers are masked."""
        return tokens >= LONGEST

    def long(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """A filter on the length."""
        return tokens > 400

    def evaluation(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """One prompt in ten is an evaluation's, with answers three times as long (they take as long as others)."""
        tokens[self.evaluated] *= 3
        return self.evaluated

    def slow_evaluation(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """The engine serves an evaluation last; its answers are twice as long."""
        return self.evaluated

    def late_beside_evaluation(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        return self.evaluated | (late > LIMIT)

    def oversampling(self, tokens: np.ndarray, late: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """More prompts are sampled than a step needs; of each 20 the last 4 to be done are dropped, which are the longest."""
        return late_of_block(tokens)


def late_of_block(tokens: np.ndarray, block: int = 160, keep: int = 128) -> np.ndarray:
    """Mask of the answers of each block that are done last."""
    gone = np.zeros(len(tokens), bool)
    for start in range(0, len(tokens) - block + 1, block):
        gone[start + np.argsort(tokens[start : start + block])[keep:]] = True
    return gone
