"""List of the compared pairs of log-probs. The module imports no large package."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

RatioPair = Literal["backend", "update", "total"]  # those whose ρ an objective may weigh tokens by
Pair = Literal[RatioPair, "reference", "teacher"]

RATIO_PAIRS: Final[tuple[str, ...]] = get_args(RatioPair)
PAIRS: Final[tuple[str, ...]] = get_args(Pair)

# What every pair compares: columns of behaviour and policy.
SIDES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "backend": ("rollout_logprobs", "trainer_logprobs"),
        "update": ("trainer_logprobs", "current_logprobs"),
        "total": ("rollout_logprobs", "current_logprobs"),
        "reference": ("trainer_logprobs", "reference_logprobs"),
        "teacher": ("trainer_logprobs", "teacher_logprobs"),
    }
)
ENGINE_PAIRS: Final = tuple(pair for pair, (behaviour, _) in SIDES.items() if behaviour == "rollout_logprobs")
