"""A small policy that learns by policy gradient, implemented in numpy alone.

A recurrent network writes six digits that follow from three. Nothing is simulated. Answers are sampled from weights
rounded to bfloat16, as in an engine, and scored again in float32.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
_RULES: Final = np.array(
    [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)]
)  # digit = rule · question mod 10
_SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "tokens": (DIGITS + 1, _HIDDEN),
    "places": (ASKED + ANSWERED, _HIDDEN),
    "input": (_HIDDEN, 3 * _HIDDEN),  # gates: reset, update, new
    "input_bias": (3 * _HIDDEN,),
    "memory": (_HIDDEN, 3 * _HIDDEN),
    "memory_bias": (3 * _HIDDEN,),
    "middle": (_HIDDEN, _HIDDEN),
    "middle_bias": (_HIDDEN,),
    "head": (_HIDDEN, DIGITS),
    "head_bias": (DIGITS,),
}
Floats = NDArray[np.floating[Any]]  # float32 but where a number of Python makes it wider
Tokens = NDArray[np.int64]


class Weights:
    """All parameters as one vector, with views by name."""

    def __init__(self, vector: Floats) -> None:
        self.vector = vector
        ends = np.cumsum([int(np.prod(shape)) for shape in _SHAPES.values()])
        parts = np.split(vector, ends[:-1])
        self.of = {name: part.reshape(shape) for (name, shape), part in zip(_SHAPES.items(), parts, strict=True)}

    @classmethod
    def zeros(cls) -> Weights:
        """Return weights with all values 0."""
        return cls(np.zeros(sum(int(np.prod(shape)) for shape in _SHAPES.values()), np.float32))

    @classmethod
    def random(cls, rng: np.random.Generator) -> Weights:
        """Draw weights as torch initializes these layers."""
        weights = cls.zeros()
        for name, values in weights.of.items():
            bound = _HIDDEN**-0.5
            values[...] = rng.uniform(-bound, bound, values.shape)
            if name in {"tokens", "places"}:
                values[...] = rng.normal(0, 1.0 if name == "tokens" else 0.1, values.shape)
        return weights

    def rounded(self) -> Weights:
        """Return the weights rounded to bfloat16, to the nearest, ties to even."""
        bits = self.vector.view(np.uint32)
        return Weights(((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32))


class _Moment(NamedTuple):
    """State that one step of the recurrent layer leaves for the gradient, [batch, hidden] each."""

    before: Floats
    reset: Floats
    update: Floats
    new: Floats
    remembered: Floats  # what the reset gate multiplies


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _advance(weights: Weights, gates: Floats, hidden: Floats) -> tuple[Floats, _Moment]:
    """Compute one step of a gated recurrent unit. `gates`: gates of the input, [batch, 3 × hidden]."""
    reset_in, update_in, new_in = np.split(gates, 3, 1)
    reset_by, update_by, remembered = np.split(hidden @ weights.of["memory"] + weights.of["memory_bias"], 3, 1)
    reset, update = _sigmoid(reset_in + reset_by), _sigmoid(update_in + update_by)
    new = np.tanh(new_in + reset * remembered)
    return new + update * (hidden - new), _Moment(hidden, reset, update, new, remembered)


def _logprobs(weights: Weights, hidden: Floats) -> tuple[Floats, Floats]:
    """Return log-probs of the next digit, […, DIGITS], and the activations in between."""
    middle = np.maximum(hidden @ weights.of["middle"] + weights.of["middle_bias"], 0)
    logits = middle @ weights.of["head"] + weights.of["head_bias"]
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), middle


class Pass:
    """A forward pass over questions [batch, ASKED] and answers [batch, ANSWERED], with the state for gradients."""

    def __init__(self, weights: Weights, questions: Tokens, answers: Tokens) -> None:
        self._weights, self._answers = weights, answers
        start = np.full((len(questions), 1), _START)
        self._tokens = np.concatenate([questions, start, answers[:, :-1]], 1)
        self._inputs = weights.of["tokens"][self._tokens] + weights.of["places"]
        gates = self._inputs @ weights.of["input"] + weights.of["input_bias"]
        hidden = np.zeros((len(questions), _HIDDEN), np.float32)
        self._moments, after = [], []
        for place in range(gates.shape[1]):
            hidden, moment = _advance(weights, gates[:, place], hidden)
            self._moments.append(moment)
            after.append(hidden)
        self._after = np.stack(after[ASKED:], 1)
        self._all, self._middle = _logprobs(weights, self._after)

    @property
    def logprobs(self) -> Floats:
        """Return log-probs of the digits of the answers, [batch, ANSWERED]."""
        return np.take_along_axis(self._all, self._answers[..., None], 2)[..., 0]

    def gradient(self, gains: Floats) -> Weights:
        """Return the gradient of −mean(gains · logprobs) in the weights. `gains`: shape [batch, ANSWERED]."""
        weights, slope = self._weights.of, Weights.zeros()
        wrong = np.exp(self._all)
        np.put_along_axis(
            wrong, self._answers[..., None], np.take_along_axis(wrong, self._answers[..., None], 2) - 1, 2
        )
        logits = wrong * (gains / gains.size)[..., None]
        middle = logits @ weights["head"].T * (self._middle > 0)
        for name, before, after in (("head", self._middle, logits), ("middle", self._after, middle)):
            slope.of[name][...] = np.tensordot(before, after, ((0, 1), (0, 1)))
            slope.of[f"{name}_bias"][...] = after.sum((0, 1))
        self._through_time(middle @ weights["middle"].T, slope)
        return slope

    def _through_time(self, outputs: Floats, slope: Weights) -> None:
        """Add the gradient through the recurrent layer. `outputs`: its output gradients at answer positions."""
        weights, onward = self._weights.of, np.zeros_like(outputs[:, 0])
        gates = np.empty((*self._tokens.shape, 3 * _HIDDEN), np.float32)
        for place in reversed(range(len(self._moments))):
            moment = self._moments[place]
            if place >= ASKED:
                onward = onward + outputs[:, place - ASKED]
            new = onward * (1 - moment.update) * (1 - moment.new**2)
            update = onward * (moment.before - moment.new) * moment.update * (1 - moment.update)
            reset = new * moment.remembered * moment.reset * (1 - moment.reset)
            gates[:, place] = np.concatenate([reset, update, new], 1)
            back = np.concatenate([reset, update, new * moment.reset], 1)
            slope.of["memory"][...] += moment.before.T @ back
            slope.of["memory_bias"][...] += back.sum(0)
            onward = onward * moment.update + back @ weights["memory"].T
        slope.of["input"][...] = np.tensordot(self._inputs, gates, ((0, 1), (0, 1)))
        slope.of["input_bias"][...] = gates.sum((0, 1))
        inputs = gates @ weights["input"].T
        slope.of["places"][...] = inputs.sum(0)
        np.add.at(slope.of["tokens"], self._tokens, inputs)


def sample(weights: Weights, questions: Tokens, rng: np.random.Generator) -> tuple[Tokens, Floats]:
    """Sample answers and return them with their log-probs, [batch, ANSWERED] each."""
    answers = np.zeros((len(questions), ANSWERED), np.int64)
    logprobs = np.zeros(answers.shape, np.float32)
    hidden, token = np.zeros((len(questions), _HIDDEN), np.float32), questions[:, 0]
    for place in range(ASKED + ANSWERED):
        inputs = weights.of["tokens"][token] + weights.of["places"][place]
        hidden, _ = _advance(weights, inputs @ weights.of["input"] + weights.of["input_bias"], hidden)
        if place + 1 < ASKED:
            token = questions[:, place + 1]
        elif place < ASKED:
            token = np.full(len(questions), _START)
        else:
            written, (every, _) = place - ASKED, _logprobs(weights, hidden)
            chances = np.exp(every).cumsum(1)
            token = (rng.random((len(questions), 1)) * chances[:, -1:] > chances).sum(1)
            answers[:, written], logprobs[:, written] = token, np.take_along_axis(every, token[:, None], 1)[:, 0]
    return answers, logprobs


class Adam:
    """The optimizer, with torch's defaults."""

    def __init__(self, weights: Weights, learning_rate: float) -> None:
        self._weights, self._rate, self._count = weights, learning_rate, 0
        self._mean, self._square = np.zeros_like(weights.vector), np.zeros_like(weights.vector)

    def step(self, slope: Floats) -> None:
        """Update the weights in place by one step."""
        self._count += 1
        self._mean += 0.1 * (slope - self._mean)
        self._square += 0.001 * (slope * slope - self._square)
        mean, square = self._mean / (1 - 0.9**self._count), self._square / (1 - 0.999**self._count)
        self._weights.vector -= np.float32(self._rate) * mean / (np.sqrt(square) + np.float32(1e-8))


def solution(questions: Tokens) -> Tokens:
    """Return the correct answers, [batch, ANSWERED]."""
    answers: Tokens = questions @ _RULES.T % DIGITS
    return answers


def rewards(questions: Tokens, answers: Tokens) -> Floats:
    """Return the share of correct digits, [batch]."""
    shares: Floats = (answers == solution(questions)).mean(1, dtype=np.float32)
    return shares


def pretrained(rng: np.random.Generator) -> Weights:
    """Return a policy trained by imitation until a share of about `PRETRAINED` of its digits is correct."""
    weights = Weights.random(rng)
    optimizer = Adam(weights, 2e-3)
    while True:
        questions = rng.integers(DIGITS, size=(256, ASKED))
        answers = solution(questions)
        optimizer.step(Pass(weights, questions, answers).gradient(np.ones(answers.shape, np.float32)).vector)
        if rewards(questions, sample(weights, questions, rng)[0]).mean() >= PRETRAINED:
            return weights


@dataclass(frozen=True)
class Batch:
    """Answers of one step, `ANSWERS` for each question. `lag`: lag of the sampling weights in versions."""

    questions: Tokens
    answers: Tokens
    rollout: Floats  # log-probs as the engine has them
    trainer: Floats  # … as the trainer has them, before its update
    rewards: Floats
    advantages: Floats
    lag: int
    scored: Pass


class Training:
    """Training by reward, with stale sampling weights, advantages by group and one Adam step per batch."""

    def __init__(self, seed: int, *, learning_rate: float = LEARNING_RATE) -> None:
        self._rng = np.random.default_rng(seed)
        self._weights = pretrained(self._rng)
        self._optimizer = Adam(self._weights, learning_rate)
        self._versions: deque[Weights] = deque(maxlen=512)

    def batch(self, lag: int) -> Batch:
        """Return the answers of one step, sampled by weights `lag` versions old."""
        self._versions.append(self._weights.rounded())
        lag = min(lag, len(self._versions) - 1)
        questions = self._rng.integers(DIGITS, size=(PROMPTS, ASKED)).repeat(ANSWERS, 0)
        answers, rollout = sample(self._versions[-1 - lag], questions, self._rng)
        scored = Pass(self._weights, questions, answers)
        earned = rewards(questions, answers)
        groups = earned.reshape(PROMPTS, ANSWERS)
        advantages = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)
        advantages = advantages.ravel().astype(np.float32)
        return Batch(questions, answers, rollout, scored.logprobs, earned, advantages, lag, scored)

    def update(self, batch: Batch, weights: Any = None) -> float:
        """Make one optimizer step and return the gradient norm before clipping. `weights`: token weights, [batch,
        ANSWERED]."""
        gains = np.broadcast_to(batch.advantages[:, None], batch.answers.shape)
        slope = batch.scored.gradient(gains if weights is None else gains * weights)
        norm = float(np.linalg.norm(slope.vector))
        self._optimizer.step(slope.vector * np.float32(min(1.0, MAX_GRAD_NORM / (norm + 1e-6))))
        return norm
