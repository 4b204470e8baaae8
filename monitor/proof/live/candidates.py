"""Which sequences of a run the probe may score again, and whether prompt log-probs are comparable with what the engine reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np

from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.proof.sample import Floats, sampling_of, temperature_of

_LOOKED_AT: Final = 4  # times as many as wanted: some are too long, or not comparable
_MASKS: Final = ("logit_bias", "allowed_token_ids", "bad_words", "structured_outputs", "watermarking")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A finished sequence. `why_not`: what makes its r incomparable with prompt log-probs; None: nothing."""

    time: datetime
    replica: str | None
    cached: bool | None
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    rollout: Floats
    why_not: str | None

    @property
    def tokens(self) -> int:
        """What scoring it again costs."""
        return len(self.prompt_ids) + len(self.response_ids)


def candidates(
    source: Source, run: str, version: str, *, replica: str | None, after: datetime | None, most: int
) -> list[Candidate]:
    """The newest sequences of one weight version with a recorded prompt. Raises `QueryError`."""
    since = None if after is None else after.isoformat()
    rows = source.read(
        "probe_sequences", run=run, version=version, replica=replica, after=since, most=_LOOKED_AT * most
    ).to_pylist()
    return [_candidate(row) for row in rows]


def _candidate(row: Mapping[str, Any]) -> Candidate:
    cached = row["cached_prefix_tokens"]
    return Candidate(
        time=row["time"],
        replica=row["replica"],
        cached=None if cached is None else cached > 0,
        prompt_ids=tuple(row["prompt_ids"]),
        response_ids=tuple(row["response_ids"]),
        rollout=np.array(row["logprobs"] or [np.nan] * len(row["response_ids"]), np.float64),
        why_not=why_not(row["logprobs_mode"], row["sampling"]),
    )


def why_not(mode: str | None, sampling: str | None) -> str | None:
    """What makes r incomparable with prompt log-probs, which are at temperature 1 and not truncated; None: nothing.

    >>> why_not("raw_logprobs", '{"temperature": 0.7}'), why_not("processed_logprobs", '{"temperature": 1.0}')
    (None, None)
    >>> why_not("processed_logprobs", '{"temperature": 0.7}')
    'log-probs are processed at temperature 0.7, and prompt log-probs are not'
    """
    if mode == "raw_logprobs":
        return None
    if mode != "processed_logprobs":
        return f"logprobs_mode is {mode or 'not recorded'}, which prompt log-probs cannot be compared with"
    if sampling is None:
        return "the sampling params were not recorded"
    document = json.loads(sampling)
    temperature = temperature_of(document.get("temperature"), "sampling")
    if temperature != 1:
        return f"log-probs are processed at temperature {temperature:g}, and prompt log-probs are not"
    changed = [*sampling_of(document, "sampling"), *(name for name in _MASKS if document.get(name))]
    return f"log-probs are processed with {', '.join(changed)}, and prompt log-probs are not" if changed else None
