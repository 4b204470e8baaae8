"""Labels of hosts (ids, versions, tags, messages) as strings that can be written."""

from __future__ import annotations

from typing import Any

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays


def text(value: Any) -> str | None:
    """A label as a string that UTF-8 can hold; None stays None, a number becomes its digits."""
    if value is None:
        return None
    label = value if isinstance(value, str) else str(arrays.scalar("label", value))
    return label if label.isascii() else label.encode("utf-8", "replace").decode("utf-8")


def trajectory_name(sample_id: Any) -> str | None:
    """Name of a sequence; one that is given as its parts is named after the first and the last.

    >>> trajectory_name(("a/0", "b/0", "c/0")), trajectory_name("a/0")
    ('a/0…c/0', 'a/0')
    """
    names = part_names(sample_id)
    if names is None:
        return text(sample_id[0] if isinstance(sample_id, tuple | list) else sample_id)
    return f"{names[0]}…{names[-1]}"


def part_names(sample_id: Any) -> list[str] | None:
    """The engine requests that a sequence was sampled in, in order; None: it is one request.

    Raises:
        InputError: a tuple without names, or with None among them.
    """
    if not isinstance(sample_id, tuple | list):
        return None
    names = [name for part in sample_id if (name := text(part))]
    if not names or len(names) < len(sample_id):
        raise InputError(f"sample_ids: {sample_id!r} must name the engine requests of one sequence, in order")
    return names if len(names) > 1 else None
