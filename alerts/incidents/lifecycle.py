"""When an incident opens and when it closes: a pure function of how the run stood before and how it stands now.

| newest incident | severity of the run | then |
|---|---|---|
| none, or closed | critical | one opens |
| open | critical, warning | healthy steps count from 0 |
| open | unknown | steps count neither as healthy nor against it |
| open | ok | steps since the last look count, if the run was healthy then too |
| open | ok for `HEALTHY_STEPS` steps in a row | it closes |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from logprobe.monitor.judgement import Severity

HEALTHY_STEPS: Final = 100  # in a row, after which an incident is over
Change = Literal["opened", "closed"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a run's newest incident.

    Attributes:
        number: 1 for the run's first.
        open: whether it has not ended.
        healthy: steps in a row that the run has been healthy.
        seen: step of the last look, if the run was healthy then; None: it was not.
    """

    number: int
    open: bool = True
    healthy: int = 0
    seen: int | None = None


def advance(before: Standing | None, severity: Severity, step: int | None) -> tuple[Standing | None, Change | None]:
    """How the newest incident stands after one more look, and what that look changed.

    Args:
        before: how it stood; None: the run has had none.
        severity: of the run now.
        step: newest one of the run; None: it has none.
    """
    if before is None or not before.open:
        if severity == "critical":
            return Standing(1 if before is None else before.number + 1), "opened"
        return before, None
    if severity == "unknown":
        return replace(before, seen=None), None
    if severity != "ok":
        return replace(before, healthy=0, seen=None), None
    passed = 0 if before.seen is None or step is None else max(0, step - before.seen)
    after = replace(before, healthy=before.healthy + passed, seen=step)
    if after.healthy >= HEALTHY_STEPS:
        return replace(after, open=False), "closed"
    return after, None
