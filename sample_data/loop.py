"""The training loop: sample, score, train, push the weights, record; step by step."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import policy
import torch
from engine import Answers, RolloutEngine
from grpo import CLIP, MAX_GRAD_NORM, MINIBATCHES, WARMUP_STEPS, Outcome, Sample, Scores, Trainer, advantages
from scenarios import Scenario
from task import TASKS, VOCABULARY, Problem, draw
from torch import Tensor

from logprobe.collectors.correction import Correction, correct
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.switch import CorrectionSwitch

GROUPS: Final = 8  # prompts per step
ANSWERS: Final = 8  # per prompt
LEARNING_RATE: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record."""

    scenario: Scenario
    seed: int
    pretraining_steps: int

    def document(self) -> dict[str, Any]:
        """The trainer's configuration, all of it."""
        return {
            "algorithm": "GRPO, clipped around the rollout log-probs",
            "scenario": asdict(self.scenario),
            "seed": self.seed,
            "pretraining_steps": self.pretraining_steps,
            "prompts_per_step": GROUPS,
            "answers_per_prompt": ANSWERS,
            "optimizer": "AdamW",
            "learning_rate": LEARNING_RATE,
            "warmup_steps": WARMUP_STEPS,
            "minibatches": MINIBATCHES,
            "clip": CLIP,
            "max_grad_norm": MAX_GRAD_NORM,
            "temperature": self.scenario.temperature,
            "dtype": self.scenario.dtype,
            "tasks": [task.name for task in TASKS],
            "vocabulary": list(VOCABULARY),
        }


class Loop:
    """One recording: engine, trainer and recorder."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        trainer: Trainer,
        engine: RolloutEngine,
        switch: CorrectionSwitch | None = None,
        *,
        checkpoints: Path | None = None,
    ) -> None:
        self._scenario = plan.scenario
        self._recorder = recorder
        self._trainer = trainer
        self._engine = engine
        self._switch = switch
        self._checkpoints = checkpoints
        self._rng = random.Random(plan.seed + 1)
        self._problems: dict[str, Problem] = {}  # by group, as long as the engine works on it
        self._waiting: deque[list[Sample]] = deque()
        self._ready: deque[tuple[Problem, list[Sample]]] = deque()  # complete groups, not yet in a batch
        self._asked = 0

    def steps(self) -> Iterator[dict[str, float]]:
        """Trains and records; yields the scalars of each step."""
        self._engine.mark(0, None, self._kept(0))
        for step in range(self._scenario.steps):
            yield self._step(step)

    def _step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        while len(self._waiting) <= self._scenario.backlog_at(step):
            self._waiting.append(self._sample())
        samples = self._waiting.popleft()
        sampled = time.perf_counter()
        before, advantage, learning_rate = (
            self._trainer.score(samples),
            advantages(samples),
            self._trainer.learning_rate,
        )
        correction = self._correction(step, samples, before, advantage)
        factors = None if correction is None else _factors(correction)
        outcome = self._trainer.train(samples, advantage, factors)
        trained = time.perf_counter()
        self._push_weights(step)
        scalars = {
            **_means(samples),
            "loss": outcome.loss,
            "grad_norm": outcome.grad_norm,
            "learning_rate": learning_rate,
            "pg_clip_fraction": outcome.clip_fraction,
            "rollout_time": sampled - started,
            "train_time": trained - sampled,
            "step_time": time.perf_counter() - started,
        }
        self._record(step, samples, before, advantage, outcome)
        self._recorder.step(step, scalars, correction=correction)
        return scalars

    def _correction(
        self, step: int, samples: Sequence[Sample], before: Scores, advantage: Sequence[float]
    ) -> Correction | None:
        """What the service wants applied in this step, computed for this batch; None: nothing."""
        config = None if self._switch is None else self._switch.current(step)
        if config is None:
            return None
        trainer = list(before.logprobs.split([len(sample.token_ids) for sample in samples]))
        rollout = [torch.tensor(sample.rollout_logprobs) for sample in samples]
        mask = [torch.ones(len(sample.token_ids)) for sample in samples]
        return correct(config, rollout, trainer, mask, advantages=torch.tensor(advantage))

    def _sample(self) -> list[Sample]:
        """One batch of complete groups. Unless the engine idles at updates, as many again are kept in flight."""
        outstanding = GROUPS if self._scenario.pause == "idle" else 2 * GROUPS
        while len(self._engine.in_flight) + len(self._ready) < outstanding:
            self._submit(draw(self._rng))
        while len(self._ready) < GROUPS:
            for group in self._engine.step():
                problem = self._problems.pop(group.group_id)
                self._ready.append((problem, _graded(group, problem)))
        return [sample for _ in range(GROUPS) for sample in self._ready.popleft()[1]]

    def _submit(self, problem: Problem) -> None:
        group_id = f"g{self._asked}"
        self._asked += 1
        self._problems[group_id] = problem
        self._engine.submit(group_id, problem.prompt_ids())

    def _push_weights(self, step: int) -> None:
        dropped = self._engine.update(
            ((name, tensor.detach()) for name, tensor in self._trainer.model.named_parameters()),
            version=step + 1,
            step=step,
            pause=self._scenario.pause,
            clear_cache=self._scenario.clears_cache_at(step),
            checkpoint=self._kept(step + 1),
        )
        if self._scenario.pause == "abort":  # what the old weights sampled is not trained on: the same questions again
            again = [self._problems.pop(group_id) for group_id in dropped] + [problem for problem, _ in self._ready]
            self._ready.clear()
            for problem in again:
                self._submit(problem)

    def _kept(self, version: int) -> Path | None:
        """Folder of the trainer's weights as they are now, one per version; None: they are not kept."""
        if self._checkpoints is None:
            return None
        folder = (self._checkpoints / str(version)).resolve()
        policy.save(self._trainer.model, folder)
        return folder

    def _record(
        self, step: int, samples: Sequence[Sample], before: Scores, advantage: Sequence[float], outcome: Outcome
    ) -> None:
        lengths = [len(sample.token_ids) for sample in samples]
        received = [np.array(sample.rollout_logprobs, np.float32) for sample in samples]
        self._recorder.training(
            step=step,
            sample_ids=[sample.sample_id for sample in samples],
            token_ids=[np.array(sample.token_ids, np.int32) for sample in samples],
            trainer_logprobs=list(before.logprobs.split(lengths)),
            rollout_logprobs=received if self._scenario.passes_rollout_logprobs else None,
            current_logprobs=list(outcome.current_logprobs.split(lengths)),
            entropy=list(before.entropy.split(lengths)),
            advantages=np.array(advantage, np.float32),
            rewards=np.array([sample.reward for sample in samples]),
            weight_version=step,  # the weights that gave `before`
            prompt_ids=[sample.group_id for sample in samples],
            tags=[{"environment": sample.task} for sample in samples],
        )


def _factors(correction: Correction) -> list[Tensor]:
    """What multiplies the loss of each token, float32 [tokens] per sample."""
    return [weight * mask for weight, mask in zip(correction.weights, correction.mask, strict=True)]


def _graded(group: Answers, problem: Problem) -> list[Sample]:
    return [
        Sample(
            sample_id=name,
            group_id=group.group_id,
            task=problem.task.name,
            prompt_ids=problem.prompt_ids(),
            token_ids=tokens,
            rollout_logprobs=logprobs,
            reward=problem.reward(tokens),
            correct=tokens == problem.answer_ids(),
        )
        for name, tokens, logprobs in zip(group.sample_ids, group.token_ids, group.logprobs, strict=True)
    ]


def _means(samples: Sequence[Sample]) -> dict[str, float]:
    return {
        "reward": float(np.mean([sample.reward for sample in samples])),
        "accuracy": float(np.mean([sample.correct for sample in samples])),
        "response_length": float(np.mean([len(sample.token_ids) for sample in samples])),
    }
