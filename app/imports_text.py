"""What the folders of imports.yaml are doing, in words, for the command line and the Data page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def imports_of(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The entries of imports.yaml, from the service's account of itself; none without a service."""
    job = (status.get("jobs") or {}).get("imports") or {}
    return (job.get("progress") or {}).get("imports") or ()


def following(each: Mapping[str, Any]) -> str:
    """One entry as a sentence.

    >>> following({"format": "prime-rl", "path": "/out", "state": "following", "files": 3, "units": 40, "bad_units": 0,
    ...            "waiting": 1, "broken": 0, "shown": ["step_3/rank_0.jsonl: prime-rl has not marked its step STABLE"]})
    'prime-rl from /out: following, 3 files, 40 units added; 1 waiting (step_3/rank_0.jsonl: prime-rl has not marked its step STABLE)'
    """
    return f"{each['format']} from {each['path']}: {each['state']}{amounts(each)}{delays(each)}"


def amounts(each: Mapping[str, Any]) -> str:
    """What was taken since its process started."""
    if "units" not in each:
        return ""
    bad = f", {each['bad_units']:,} left out" if each["bad_units"] else ""
    return f", {each['files']:,} files, {each['units']:,} units added{bad}"


def delays(each: Mapping[str, Any]) -> str:
    """What waits and what is broken, with the first of them."""
    counts = [f"{each[name]:,} {name}" for name in ("broken", "waiting") if each.get(name)]
    return f"; {', '.join(counts)} ({each['shown'][0]})" if counts else ""
