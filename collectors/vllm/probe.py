"""The live probe for an engine in the trainer's process: `LLM` scores some of its answers again, past its prefix cache.

    probe = Probe(llm, recorder)
    outputs = llm.generate(prompts, SamplingParams(logprobs=0, ...))
    probe.look(outputs, step=step)      # before the next weight update

The gap between what it said and what it says now is recorded as `probe.k3` and `probe.abs_diff_mean` of the step.
Engine, settings and weights are the same, so it is near 0 unless the engine's state went bad. Behind HTTP the service
does it (docs/proof.md).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel.arithmetic import CLAMP
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.vllm.capture import PROBE

SHARE: Final = 0.001
SEQUENCES: Final = 4
_NEUTRAL: Final = {
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_MASKS: Final = ("logit_bias", "allowed_token_ids", "bad_words", "structured_outputs")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One completion: its prompt, its tokens, r, and whether prompt tokens came from the prefix cache."""

    prompt: list[int]
    tokens: list[int]
    logprobs: NDArray[np.float64]
    cached: bool

    @property
    def price(self) -> int:
        """Tokens that scoring it again costs, with the one that has to be sampled."""
        return len(self.prompt) + len(self.tokens) + 1


class Probe:
    """Scores answers of one `vllm.LLM` again; used by the thread that drives it."""

    def __init__(self, llm: Any, recorder: Recorder, *, share: float = SHARE, sequences: int = SEQUENCES) -> None:
        """`share`: of the tokens seen by `look` that may be scored again, prompts included; `sequences`: per look, at
        most."""
        self._llm, self._recorder = llm, recorder
        self._share, self._sequences = share, sequences
        self._sampled = self._scored = 0

    def look(self, outputs: Sequence[Any], *, step: int, params: Any) -> dict[str, float] | None:
        """Scores some of `outputs` again and records the gap with `step`.

        Args:
            outputs: `RequestOutput`s with log-probs that the present weights sampled.
            step: that is trained on them.
            params: the `SamplingParams` of these requests.

        Returns:
            What was recorded; None: nothing could be scored (the share is used up, no log-probs, or log-probs at
            another temperature than 1, which prompt log-probs cannot be compared with). An error of the engine is
            counted in `health` and gives None.
        """
        with self._recorder.guard("probe"):
            self._sampled += sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
            chosen = self._affordable(_answers(outputs)) if self._comparable(params) else []
            if chosen:
                gap = _measured(chosen, self._score(chosen))
                self._recorder.step(step, gap)
                return gap
        return None

    def _comparable(self, params: Any) -> bool:
        mode = str(self._llm.llm_engine.vllm_config.model_config.logprobs_mode)
        if mode != "processed_logprobs":
            return mode == "raw_logprobs"
        neutral = all(getattr(params, name, value) in (value, None) for name, value in _NEUTRAL.items())
        whole = (getattr(params, "top_k", 0) or 0) <= 0
        return neutral and whole and params.temperature == 1 and not any(getattr(params, name, None) for name in _MASKS)

    def _affordable(self, answers: Iterator[_Answer]) -> list[_Answer]:
        chosen: list[_Answer] = []
        longest = self._llm.llm_engine.vllm_config.model_config.max_model_len
        for answer in answers:
            fits = self._scored + answer.price <= self._share * self._sampled and answer.price <= longest
            if fits and len(chosen) < self._sequences:
                chosen.append(answer)
                self._scored += answer.price
        return chosen

    def _score(self, chosen: Sequence[_Answer]) -> list[NDArray[np.float64]]:
        from vllm import SamplingParams  # noqa: PLC0415 - the host's own

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, extra_args={PROBE: 1})
        prompts = [
            {"prompt_token_ids": [*answer.prompt, *answer.tokens], "cache_salt": secrets.token_hex(8)}
            for answer in chosen
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [_of_prompt(output, answer) for output, answer in zip(outputs, chosen, strict=True)]


def _answers(outputs: Sequence[Any]) -> Iterator[_Answer]:
    """Completions with a log-prob for every token."""
    for output in outputs:
        for completion in output.outputs:
            tokens = list(completion.token_ids)
            if tokens and completion.logprobs is not None and len(completion.logprobs) == len(tokens):
                r = [row[token].logprob for row, token in zip(completion.logprobs, tokens, strict=True)]
                cached = bool(output.num_cached_tokens)
                yield _Answer(list(output.prompt_token_ids), tokens, np.array(r, np.float64), cached)


def _of_prompt(output: Any, answer: _Answer) -> NDArray[np.float64]:
    rows = output.prompt_logprobs[len(answer.prompt) :]
    return np.array([row[token].logprob for row, token in zip(rows, answer.tokens, strict=True)], np.float64)


def _measured(chosen: Sequence[_Answer], scores: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """The scalars that the service's probe records, too."""
    d = [again - answer.logprobs for answer, again in zip(chosen, scores, strict=True)]
    values = {
        "probe/scored_tokens": float(sum(answer.price for answer in chosen)),
        "probe/tokens": float(sum(np.isfinite(x).sum() for x in d)),
        "probe/k3": _k3(d),
        "probe/abs_diff_mean": _mean([np.abs(x) for x in d]),
        "probe/cached_k3": _k3([x for x, answer in zip(d, chosen, strict=True) if answer.cached]),
        "probe/uncached_k3": _k3([x for x, answer in zip(d, chosen, strict=True) if not answer.cached]),
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _k3(d: Sequence[NDArray[np.float64]]) -> float:
    return _mean([np.expm1(np.minimum(x, CLAMP)) - x for x in d])


def _mean(values: Sequence[NDArray[np.float64]]) -> float:
    """Over finite ones; NaN without any."""
    finite = [x[np.isfinite(x)] for x in values]
    count = sum(map(len, finite))
    return float(sum(x.sum() for x in finite) / count) if count else math.nan
