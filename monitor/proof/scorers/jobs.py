"""Jobs and answers of the scorer processes, in JSON, with null for values that are not finite.

Each process may return ``{"error": words}`` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NotRequired, TypedDict

UNREPEATED: Final = (
    "the engine takes no logits processor, as beside speculative decoding"  # why an answer has no decode
)


class SequenceJob(TypedDict):
    """A sequence to score, without log-probs, so that no scorer can copy them.

    `sampling`: non-neutral params. `spans`: (first token, token after the last, weight version). `version`: weight
    version that sampled it, for a replay.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    temperature: float
    sampling: Mapping[str, float]
    spans: list[tuple[int, int, str]]
    version: NotRequired[str]


class Replay(TypedDict):
    """Engine state to reproduce, see `Scorers.replayed`."""

    in_flight: bool
    prefix: str | None
    shared: bool


class EngineJob(TypedDict):
    """Job of one engine.

    `arguments`: arguments of `vllm serve`. `overrides`: fields of `EngineArgs`. `paths`: "decode", "prefill", "alone".
    `checkpoints`: checkpoints by weight version, for a replay. `repeat`: number of an otherwise equal job.
    """

    model: str
    arguments: str
    overrides: Mapping[str, Any]
    sequences: list[SequenceJob]
    paths: list[str]
    replay: NotRequired[Replay | None]
    checkpoints: NotRequired[Mapping[str, str]]
    repeat: NotRequired[int]


Logprobs = list[float | None]


class EngineAnswer(TypedDict):
    """Log-probs per path and sequence, with effective settings, speed, and KV cache capacity of the engine, or None. An
    engine that can repeat no tokens has `prefill` only.
    """

    settings: Mapping[str, Any]
    decode: NotRequired[list[Logprobs]]
    tokens_per_s: NotRequired[float]
    rates: NotRequired[list[float]]
    kv_tokens: NotRequired[int | None]
    alone: NotRequired[list[Logprobs | None]]
    prefill: NotRequired[list[Logprobs | None]]
    prefill_tokens_per_s: NotRequired[float]


class Sampled(TypedDict):
    """One answer to a prompt, with the log-prob of each token."""

    prompt_ids: list[int]
    response_ids: list[int]
    rollout_logprobs: list[float]


class TrialJob(TypedDict):
    """Job of `logprobe preflight`: number of answers, and tokens of each."""

    model: str
    arguments: str
    answers: int
    tokens: int
    temperature: NotRequired[float]


class TrialAnswer(TypedDict):
    """Result of a trial. `sampler`: description of the sampler. `config`: the engine's configuration, or None without
    an engine.

    `prompts`: description of the prompts.
    """

    sequences: list[Sampled]
    sampler: str
    config: Mapping[str, Any] | None
    prompts: str
