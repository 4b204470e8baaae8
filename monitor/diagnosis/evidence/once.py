"""Questions that several rules ask of the same evidence are answered once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def once(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """A pure function of an immutable object, computed once for each: as a `cached_property` that is defined elsewhere.

    Other arguments are hashable or immutable objects, told apart by which they are. The answers are kept with the first
    object, and end with it.
    """
    return _once(function, vars)


def once_for_all(function: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """The same of `Tokens`, whatever is left of their log-ratio: nothing of it depends on d."""
    return _once(function, lambda tokens: tokens.common)  # type: ignore[attr-defined]


def _once(
    function: Callable[Concatenate[T, P], R], kept_with: Callable[[T], dict[Any, Any]]
) -> Callable[Concatenate[T, P], R]:
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(of: T, /, *others: P.args, **named: P.kwargs) -> R:
        answers = kept_with(of).setdefault(name, {})
        asked = (others, *named.items())
        if asked not in answers:
            answers[asked] = function(of, *others, **named)
        answer: R = answers[asked]
        return answer

    return kept
