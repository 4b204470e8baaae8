"""Labels of hosts (ids, versions, tags, messages) as strings that can be written."""

from __future__ import annotations

from typing import Any

from logprobe.collectors import arrays


def text(value: Any) -> str | None:
    """A label as a string that UTF-8 can hold; None stays None, a number becomes its digits."""
    if value is None:
        return None
    label = value if isinstance(value, str) else str(arrays.scalar("label", value))
    return label if label.isascii() else label.encode("utf-8", "replace").decode("utf-8")
