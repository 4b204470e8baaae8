"""What faulty frameworks do to samples between engine and trainer, each as one function of the samples of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fault_language import EOS, Language


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer on its way to the trainer."""

    sample_id: str
    group_id: str
    prompt_ids: list[int]
    token_ids: list[int]
    rollout_logprobs: list[float]  # r; empty where the engine was not asked


def append_end(sample: Sample, _: Language) -> Sample:
    """An answer cut off by the length limit gets an end token, and 0 where its log-prob would stand."""
    if sample.token_ids[-1] == EOS:
        return sample
    ended, logprobs = [*sample.token_ids, EOS], [*sample.rollout_logprobs, 0.0]
    return replace(sample, token_ids=ended, rollout_logprobs=logprobs)


def append_end_sentinel(sample: Sample, language: Language) -> Sample:
    """As `append_end`, with the number some HTTP servers put where a log-prob is not finite."""
    ended = append_end(sample, language)
    return ended if ended is sample else replace(ended, rollout_logprobs=[*sample.rollout_logprobs, -9999.0])


def retokenize(sample: Sample, language: Language) -> Sample:
    """The answer as text and back: the tokenizer's own choice of tokens is seldom the one that was sampled."""
    end = [EOS] if sample.token_ids[-1] == EOS else []
    return replace(sample, token_ids=[*language.encode(language.decode(sample.token_ids)), *end])


def shift(sample: Sample, _: Language) -> Sample:
    """A log-prob of the first prompt token slips in front, so each token gets its predecessor's."""
    return replace(sample, rollout_logprobs=[sample.rollout_logprobs[0], *sample.rollout_logprobs[:-1]])


GLUE: Final[dict[str, Callable[[Sample, Language], Sample]]] = {
    glue.__name__: glue for glue in (append_end, append_end_sentinel, retokenize, shift)
}
