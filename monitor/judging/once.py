"""Cache for answers that several tests compute from the same object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def once(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Wrap a pure function of an immutable object, so that it runs once per object.

    Other arguments must be hashable or immutable. Immutable ones are compared by identity. The answers are stored with
    the first object and released with it.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(of: T, /, *others: P.args, **named: P.kwargs) -> R:
        answers = vars(of).setdefault(name, {})
        asked = (others, *named.items())
        if asked not in answers:
            answers[asked] = function(of, *others, **named)
        answer: R = answers[asked]
        return answer

    return kept
