"""The table of runs for `logprobe runs` and the Runs page, the worst first. The functions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from logprobe.app.runs import Run
from logprobe.app.text.judgement import cause, lateness, word
from logprobe.monitor.judgement import SEVERITIES, Judgement

_CORRECTIONS: Final = {"suggested": "suggested", "issued": "issued", "applied": "on", "withdrawn": "withdrawn"}
_DIGITS: Final = re.compile(r"(\d+)")
Glance = Mapping[str, Any]  # a row of `app_runs_glance`


def worst_first(runs: Iterable[Run]) -> list[Run]:
    """Return the runs in order of severity, the worst first.

    Among equals, active runs come first, then newer ones, then the natural order of names.
    """
    return sorted(runs, key=_rank)


def _rank(run: Run) -> tuple[int, bool, float, list[tuple[bool, int, str]]]:
    newest = 0.0 if run.last_record is None else run.last_record.timestamp()
    return SEVERITIES.index(run.judgement.severity), run.liveness.state.over, -newest, natural(run.name)


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts numbers within names as numbers.

    >>> sorted(["seed10", "seed9", "seed"], key=natural)
    ['seed', 'seed9', 'seed10']
    """
    parts = [part for part in _DIGITS.split(name) if part]
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def matching(runs: Iterable[Run], words: str = "") -> list[Run]:
    """Return runs whose name, severity, cause, alerts or state contain all of `words`."""
    sought = words.lower().split()
    return [run for run in runs if all(part in _text(run) for part in sought)]


def _text(run: Run) -> str:
    judgement, state = run.judgement, run.liveness.state
    rules = [alert.rule for alert in judgement.alerts]
    parts = [run.name, judgement.severity, word(judgement), cause(judgement), *rules, state.value.replace("_", " ")]
    return " ".join([*parts, "ended" if state.over else "running"]).lower()


def line(run: Run, glance: Glance | None) -> dict[str, Any]:
    """Return one run as a row of the table. Times and numbers are not formatted."""
    judgement, latest = run.judgement, glance or {}
    return {
        "run": run.name,
        "severity": judgement.severity,
        "verdict": word(judgement),
        "since": judgement.since,
        "cause": cause(judgement) or None,
        "not_judged_since": judgement.step if lateness(judgement) else None,
        "alerts": [alert.rule for alert in judgement.alerts],
        "acknowledged_by": acknowledged_by(judgement),
        "k3": next(iter(reversed(latest.get("k3") or [])), None),
        "lag": latest.get("lag"),
        "correction": _CORRECTIONS.get(latest.get("correction") or "", "off"),
        "state": run.liveness.state.value,
        "steps": run.steps,
        "last_step": run.last_step,
        "sequences": run.sequences,
        "tokens": run.tokens,
        "last_record_at": run.last_record,
    }


def acknowledged_by(judgement: Judgement) -> str | None:
    """Return the users who acknowledged the firing alerts, or None if an alert is unacknowledged."""
    names: Sequence[str | None] = [alert.acknowledged_by for alert in judgement.alerts]
    return ", ".join(sorted({str(name) for name in names})) if names and all(names) else None
