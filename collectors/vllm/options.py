"""Options of the plugin, ``LOGPROBE_VLLM="inject,prompts=0.01,harmless=get_model:get_state"``.

============  ==================================================================================================
``inject``    log-probs of sampled tokens for requests that did not ask; their callers never see them
``prompts``   share of distinct prompts whose token ids are recorded, 0 … 1; default 0, see `prompts`
``harmless``  calls on workers that leave the weights alone, with colons between several, see `weights.loads`
============  ==================================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from logprobe.collectors.environment import pairs

VARIABLE: Final = "LOGPROBE_VLLM"
NAMES: Final = ("inject", "prompts", "harmless")


def option(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of an option, "" if it has none, or None if it is not set."""
    return pairs(environment.get(VARIABLE, "")).get(name)


def injects(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether log-probs are computed for requests that did not ask."""
    return option("inject", environment) in {"", "1", "true", "yes"}


def unknown(environment: Mapping[str, str] = os.environ) -> str:
    """Return the problem of the variable, or ""."""
    names = ", ".join(sorted(pairs(environment.get(VARIABLE, "")).keys() - set(NAMES)))
    return f"{VARIABLE}: {names}: not known and without effect; known are {', '.join(NAMES)}" if names else ""
