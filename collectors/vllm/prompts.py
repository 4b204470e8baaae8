"""Selection of the prompts that are recorded for scoring sequences again, by ``LOGPROBE_RECORD=prompts=…``.

By default no prompts are recorded. The selection depends on the prompt alone. Every replica therefore keeps the same
prompts, and all answers to one of them can be scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.environment import RECORD, option
from logprobe.collectors.health import Health

_MOST_KNOWN: Final = 65_536  # hashes remembered; beyond that, a prompt may be written again
_RANGE: Final = 1 << 64


class PromptSample:
    """Selection of prompts by their hash, each once.

    Args:
        share: share of the distinct prompts, 0 … 1.

    >>> sample = PromptSample(1.0)
    >>> sample.ids([5, 6], "00000000000000ff")
    array([5, 6], dtype=int32)
    >>> sample.ids([5, 6], "00000000000000ff") is None
    True
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._known: set[str] = set()

    def ids(self, prompt: Sequence[int], prompt_hash: str) -> NDArray[np.int32] | None:
        """Return the token ids of a selected prompt to write now, or None if it is not selected or already written."""
        if prompt_hash in self._known or int(prompt_hash, 16) >= self._share * _RANGE:
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(prompt_hash)
        return np.array(prompt, np.int32)


def prompt_share(health: Health) -> float:
    """Return the share set in the environment. Report an invalid share and return 0."""
    text = option("prompts") or "0"
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        health.report(
            "prompts_share",
            f"{RECORD}: prompts={text!r} is not a number from 0 to 1; no prompts are recorded",
            severity="error",
        )
        return 0.0
    return share
