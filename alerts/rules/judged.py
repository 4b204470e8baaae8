"""Level of an alert according to the stored judgement of a run. Pure.

| verdict | level |
|---|---|
| critical | critical |
| growing, watch | warning |
| healthy, in time | quiet |
| unknown, calibrating, no data, none yet, or healthy and overdue | not measured: nothing changes |

A judgement that an operator accepted is healthy, so accepted findings send nothing.
"""

from __future__ import annotations

from typing import Final

from logprobe.alerts.rules.alert import CRITICAL, WARNING, Alert, Seen
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.named import told

NEEDS, KEEPS = 3, 5  # steps for which a verdict stands before it is told: a step's records come in several parts
_LEVELS: Final = {"critical": CRITICAL, "growing": WARNING, "watch": WARNING, "healthy": 0}
_MOST: Final = 600  # characters of an explanation


def look(judged: Judgement, document: DiagnosisDocument | None) -> Seen:
    """Return the level and description of a judgement. `document`: underlying diagnosis, or None."""
    verdict = judged.verdict or "not judged yet"
    level = _LEVELS.get(verdict)
    if not level:
        late = level == 0 and judged.overdue
        return Seen(None if late else level, f"the run is {verdict.replace('_', ' ')}{', but overdue' if late else ''}")
    since = "" if judged.since_step is None else f" since step {judged.since_step:,}"
    lead = f"the run is {verdict}{since}" if verdict != "watch" else f"the run needs a look{since}"
    finding = None if document is None else leading(document)
    if finding is None:
        return Seen(level, f"{lead}: no test names a cause", since_step=judged.since_step)
    share = finding["share"]["now"]
    explains = "" if share is None else f" ({share:.0%} of K3)"
    words = f"{lead}: {finding['cause'].replace('_', ' ')}{explains}. {finding['explanation']}"
    return Seen(
        level,
        words if len(words) <= _MOST else f"{words[: _MOST - 1]}…",
        since_step=judged.since_step,
        cause=finding["cause"],
        layer=finding["layer"],
        fix=told(finding),
    )


def steps_of(alert: Alert, seen: Seen, step: int) -> int:
    """Return the number of steps that a judgement as of `step` covers.

    An unchanged verdict covers the steps since the previous evaluation. A new one covers the steps since its first
    step, limited by the last different judgement. The first step of a recovery is unknown.
    """
    gone = None if alert.step is None else max(0, step - alert.step)
    if alert.toward is not None and (alert.toward > alert.level) == ((seen.level or 0) > alert.level):
        return gone or 0
    if seen.level == alert.level and gone is not None:
        return gone
    if not seen.level or seen.level <= alert.level:
        return 1
    stood = step - (seen.since_step or 0) + 1
    return max(1, stood if gone is None else min(stood, gone))
