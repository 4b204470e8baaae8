"""One short run of a `Case`: sample, pass on, score, learn, push the weights, record; step by step."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fault_fp8
import numpy as np
from engine import Answers, RolloutEngine
from fault_case import Case
from fault_glue import GLUE, Sample
from fault_language import EOS, LENGTH, Language, checkpoint_tensors
from fault_trainer import Trainer
from torch import Tensor
from transformers import PreTrainedModel

from logprobe.collectors.recorder.recorder import Recorder


class Fleet:
    """The engines of a run, and what each of them was sent.

    Args:
        case: how they are set up and updated.
        model: the first weights.
        language: the tokenizer structured outputs need.
        seed: of sampling.
        recorder: writes the trainer's side of weight updates.
    """

    def __init__(self, case: Case, model: PreTrainedModel, language: Language, seed: int, recorder: Recorder) -> None:
        self._case = case
        self._prompts: dict[str, list[int]] = {}
        self._sent: dict[str | None, dict[str, Tensor]] = {name: self._arriving(model) for name in case.replicas}
        if str(case.engine.get("kv_cache_dtype")).startswith("fp8"):
            fault_fp8.provide()
        with TemporaryDirectory() as checkpoint:
            model.save_pretrained(checkpoint, state_dict=None if case.weight_bits is None else self._sent[None])
            language.save(Path(checkpoint))
            self.engines = {
                name: RolloutEngine(
                    Path(checkpoint),
                    recorder=recorder,
                    replica=name,
                    sampling=_sampling(case),
                    max_model_len=LENGTH,
                    seed=seed + number,
                    **case.engine,
                )
                for number, name in enumerate(case.replicas)
            }

    def mark(self, version: int, step: int | None) -> None:
        """The engines have weights `version` from now on."""
        next(iter(self.engines.values())).mark(version, step)

    @property
    def outstanding(self) -> int:
        """Groups that are being sampled."""
        return sum(len(engine.in_flight) for engine in self.engines.values())

    def submit(self, number: int, prompt: list[int], *, max_tokens: int) -> None:
        """Ask for the answers to one prompt, of the engine whose turn it is."""
        group = f"g{number}"
        self._prompts[group] = prompt
        engine = list(self.engines.values())[number % len(self.engines)]
        silent = self._case.silent and number % self._case.silent == 0
        engine.submit(group, prompt, max_tokens=max_tokens, **({"logprobs": None} if silent else {}))

    def sampled(self) -> Iterator[Sample]:
        """One iteration of every engine that has something to do; the answers that became complete by it."""
        for engine in self.engines.values():
            for group in engine.step() if engine.in_flight else ():
                yield from _samples(group, self._prompts.pop(group.group_id))

    def update(self, model: PreTrainedModel, version: int, step: int) -> None:
        """Push the weights, as far as the case lets them arrive."""
        case = self._case
        for name, engine in self.engines.items():
            missed = case.miss if case.miss is not None and case.miss.concerns(version, name) else None
            if missed is not None and not missed.loads:
                engine.mark(version, step)
                continue
            pattern = None if missed is None else re.compile(missed.tensors)
            fresh = self._arriving(model)
            kept = {key for key in fresh if pattern is not None and pattern.search(key)}
            self._sent[name] = {key: self._sent[name][key] if key in kept else fresh[key] for key in fresh}
            engine.update(
                self._sent[name].items(), version=version, step=step, pause=case.pause, clear_cache=case.clear_cache
            )

    def _arriving(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The weights as the engines get them."""
        bits = self._case.weight_bits
        fresh = checkpoint_tensors(model)
        return fresh if bits is None else {name: _quantized(tensor, bits) for name, tensor in fresh.items()}

    def close(self) -> None:
        """Ends all engines."""
        for engine in self.engines.values():
            engine.close()


class Loop:
    """One recording.

    Args:
        case: what to record.
        seed: of prompts.
        language: what prompts are cut from.
        trainer: scores and learns.
        fleet: samples.
        recorder: the trainer's.
    """

    def __init__(
        self, case: Case, *, seed: int, language: Language, trainer: Trainer, fleet: Fleet, recorder: Recorder
    ) -> None:
        self._case = case
        self._language = language
        self._trainer = trainer
        self._fleet = fleet
        self._recorder = recorder
        self._rng = random.Random(seed)
        self._preamble = language.excerpt(random.Random(seed + 1), case.scale.preamble)
        self._ready: deque[Sample] = deque()
        self._waiting: deque[list[Sample]] = deque()
        self._asked = 0

    def steps(self) -> Iterator[dict[str, float]]:
        """Trains and records; yields the scalars of each step."""
        self._fleet.mark(0, None)
        for step in range(self._case.scale.steps):
            yield self._step(step)

    def _step(self, step: int) -> dict[str, float]:
        case = self._case
        while len(self._waiting) <= case.backlog.at(step):
            self._waiting.append(self._sample())
        sampled = self._waiting.popleft()
        samples = sampled if case.glue is None else [GLUE[case.glue](sample, self._language) for sample in sampled]
        if case.jump is not None and case.jump[0] == step:
            self._trainer.jump(case.jump[1])
        trainer_logprobs = self._trainer.score(samples)
        rewards = [self._reward(sample) for sample in samples]
        scalars = {
            "reward": float(np.mean(rewards)),
            "response_length": float(np.mean([len(sample.token_ids) for sample in samples])),
            **self._trainer.learn(samples, rewards),
        }
        self._record(step, samples, trainer_logprobs, rewards)
        self._recorder.step(step, scalars)
        self._fleet.update(self._trainer.model, step + 1, step)
        return scalars

    def _sample(self) -> list[Sample]:
        """One batch. Unless engines idle at updates, twice as many prompts are always being worked on."""
        scale, idle = self._case.scale, self._case.pause == "idle"
        wanted = scale.prompts * scale.answers
        while len(self._ready) < wanted:
            while self._fleet.outstanding < (scale.prompts if idle else 2 * scale.prompts):
                self._submit()
            self._ready.extend(self._fleet.sampled())
            while idle and self._fleet.outstanding:
                self._ready.extend(self._fleet.sampled())
        return [self._ready.popleft() for _ in range(wanted)]

    def _submit(self) -> None:
        scale = self._case.scale
        # Answers of one length would all be finished together, and nothing be in flight at an update.
        longest = scale.tokens if self._case.pause == "idle" else self._rng.randint(scale.tokens // 4, scale.tokens)
        self._fleet.submit(self._asked, [*self._preamble, *self._question()], max_tokens=longest)
        self._asked += 1

    def _question(self) -> list[int]:
        return self._language.excerpt(self._rng, self._rng.randint(12, 40))

    def _reward(self, sample: Sample) -> float:
        """Characters per token: a policy can learn to prefer long tokens."""
        return len(self._language.decode(sample.token_ids)) / len(sample.token_ids)

    def _record(self, step: int, samples: Sequence[Sample], scores: Sequence[Tensor], rewards: Sequence[float]) -> None:
        received: Any = [np.array(sample.rollout_logprobs, np.float32) for sample in samples]
        self._recorder.training(
            step=step,
            sample_ids=[sample.sample_id for sample in samples],
            token_ids=[np.array(sample.token_ids, np.int32) for sample in samples],
            trainer_logprobs=list(scores),
            rollout_logprobs=received if self._case.received else None,
            rewards=np.array(rewards),
            weight_version=step,  # the weights that gave t
            prompt_ids=[sample.group_id for sample in samples],
        )


def _sampling(case: Case) -> dict[str, Any]:
    from vllm.sampling_params import StructuredOutputsParams

    given = {"n": case.scale.answers, "stop_token_ids": [EOS], **case.sampling}
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    return given


def _quantized(tensor: Tensor, bits: int) -> Tensor:
    """A matrix rounded to integers of so many bits, symmetrically and with a scale per row, and back."""
    if tensor.ndim < 2:
        return tensor
    scale = tensor.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (tensor / scale).round() * scale


def _samples(group: Answers, prompt: list[int]) -> Iterator[Sample]:
    for name, tokens, logprobs in zip(group.sample_ids, group.token_ids, group.logprobs, strict=True):
        yield Sample(name, group.group_id, prompt, tokens, logprobs)
