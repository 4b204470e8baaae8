"""Questions that several rules ask of the same evidence are answered once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def once(function: Callable[[T], R]) -> Callable[[T], R]:
    """A pure function of one immutable object, computed once for each: as a `cached_property` that is defined
    elsewhere.

    The answer is kept with the object, and ends with it.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(of: T) -> R:
        answers = vars(of)
        if name not in answers:
            answers[name] = function(of)
        answer: R = answers[name]
        return answer

    return kept
