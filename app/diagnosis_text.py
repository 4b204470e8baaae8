"""What the parts of a diagnosis are called where people read them: command line and pages."""

from __future__ import annotations

from typing import Final

LAYERS: Final = {
    "semantic": "semantic: the engine's log-probs do not mean what the trainer expects",
    "inference_path": "inference path: the engine computes a different function from the trainer",
    "objective": "objective: the policies themselves differ",
    "none": "none",
    "unknown": "unknown: the measurements do not show it",
}
ADVICE: Final = {"enable": "enable one", "do_not_enable": "do not enable one", "not_needed": "not needed"}
_SURE: Final = ((0.9, "certain"), (0.7, "very likely"), (0.5, "likely"), (0.0, "possible"))


def sure(confidence: float) -> str:
    """A confidence in words.

    >>> sure(0.95), sure(0.5), sure(0.1)
    ('certain', 'likely', 'possible')
    """
    return next(word for least, word in _SURE if confidence >= least)
