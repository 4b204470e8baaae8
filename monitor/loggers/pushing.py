"""Computed metrics → a target, each step once.

The target is asked what it has, so a process that was killed resumes after the last step that arrived, and a second one
adds nothing. Steps only go forward, because none of the targets can take one back: what is recomputed after it was
pushed stays as it was, and a step that appears late, below the last one, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from logprobe.monitor import queries
from logprobe.monitor.loggers.targets import Target
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.queries import Source

PREFIX: Final = "logprobe/"
# Records of a step come from several processes; while newer steps are this few, some may be missing.
SETTLE_STEPS: Final = 2
_END: Final = 2**62
_BATCH_STEPS: Final = 256  # with some two hundred metrics each


def push(source: Source, run: str, target: Target, *, up_to: int | None = None) -> int:
    """Logs the steps of `run` that `target` lacks, at most to `up_to`; returns how many. Raises what reading or the
    target raises."""
    after = -1 if target.last is None else target.last
    wanted = {"run": run, "up_to": _END if up_to is None else up_to, "count": _BATCH_STEPS}
    logged = 0
    while rows := queries.push_steps(source, after=after, **wanted).to_pylist():
        for row in rows:
            values = named(row)
            if values:  # a step of which nothing is known is no step with nothing in it
                target.log(row["step"], row["time"], values)
                logged += 1
        target.flush()
        after = rows[-1]["step"]
    return logged


def named(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a step as targets call them; what is unknown is left out, and never 0.

    >>> named({"step": 3, "backend.k3_kl": 0.5, "backend.kl": None, "reward": 1.0, "the_trainers_own": 2.0})
    {'logprobe/backend/k3_kl': 0.5, 'logprobe/reward': 1.0}
    """
    measured = {key: row[key] for key in KEYS if row.get(key) is not None}
    return {PREFIX + key.replace(".", "/"): float(value) for key, value in measured.items() if math.isfinite(value)}
