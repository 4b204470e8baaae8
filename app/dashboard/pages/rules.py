"""The rules of a home on the Alerts page: a list, and what came of trying one of them out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.charts.downsample import thin
from logprobe.app.dashboard.charts.scales import DECADES, floor_of
from logprobe.app.text.numbers import number
from logprobe.monitor.analysis.slices import DIMENSIONS
from logprobe.monitor.metrics.catalog import KEYS, metric

Row = Mapping[str, Any]

OTHERS: Final = 5  # newest other runs that a rule is tried on
_POINTS: Final = 600  # of a line: the chart is a few hundred pixels wide
_EPISODES: Final = 6  # that are named by their steps


def rules_data(listed: Row, trial: Row | None, *, run: str, blocked: str) -> dict[str, Any]:
    """Data of `browser/rules.js`, without what was said.

    Args:
        listed: as the service lists the rules.
        trial: what came of the last one that was tried out, see `trial_data`; None: none was.
        run: that is open.
        blocked: why nothing can be saved from this page; "": it can.
    """
    return {
        **listed,
        "run": run,
        "blocked": blocked,
        "trial": trial,
        "metrics": [_metric(key) for key in KEYS],
        "slices": list(DIMENSIONS),
    }


def trial_data(found: Row, at: Any) -> dict[str, Any]:
    """What `browser/rules.js` shows of a trial. `found`: as the service answers; `at`: names the question."""
    trial = found["trial"]
    return {
        "at": at,
        "answered": True,
        "problems": found["problems"],
        "form": found["form"],
        "lost": found.get("lost", ""),
        "words": [] if found["problems"] else [*_here(found, trial), *_elsewhere(found["others"])],
        "chart": None if trial is None or not trial["parts"] else chart(trial),
    }


def untried(why: str, at: Any) -> dict[str, Any]:
    """As `trial_data`, when nothing came back."""
    words = [f"Trial failed: {why}. Edit the text to try again."]
    return {"at": at, "answered": False, "problems": [], "form": None, "lost": "", "words": words, "chart": None}


def _metric(key: str) -> dict[str, str]:
    declared = metric(key)
    return {"key": key, "label": declared.label, "unit": declared.unit, "words": declared.words}


def _here(found: Row, trial: Row | None) -> list[str]:
    if found["untestable"]:
        return [f"This rule cannot be tried: {found['untestable']}."]
    if trial is None:
        return ["There is no run to try it on."]
    looked = (
        f"the first {trial['steps']:,} steps of this run"
        if trial["cut"]
        else f"the {trial['steps']:,} steps of this run"
    )
    fired = trial["fired"]
    if not fired:
        return [f"It would not have fired in {looked}."]
    return [f"It would have fired {_times(len(fired))} in {looked}: {_episodes(fired)}."]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _episodes(fired: Sequence[Sequence[Any]]) -> str:
    named = [f"{'–'.join(_ends(first, last))}{f' ({part})' if part else ''}" for part, first, last in fired[:_EPISODES]]
    more = len(fired) - _EPISODES
    return f"steps {', '.join(named)}" + (f" and {more:,} more" if more > 0 else "")


def _ends(first: int, last: int) -> list[str]:
    return [f"{first:,}"] if first == last else [f"{first:,}", f"{last:,}"]


def _elsewhere(others: Sequence[Row]) -> list[str]:
    if not others:
        return []
    total = sum(each["fired"] for each in others)
    often = _times(total) if total else "never"
    which = "the other run" if len(others) == 1 else f"the {len(others)} other newest runs"
    named = ", ".join(f"`{each['run']}` {each['fired']:,}{_cut(each)}" for each in others)
    return [
        f"Fired {often} in {which}: {named}."
        if total or any(each["cut"] for each in others)
        else f"Never fired in {which}."
    ]


def _cut(other: Row) -> str:
    return f" in its first {other['steps']:,} steps" if other["cut"] else ""


def chart(trial: Row) -> dict[str, Any]:
    """Lines, limits and phases of a trial, for `browser/rule_chart.js`."""
    lines = [{"slice": part["slice"], "points": _points(part["values"])} for part in trial["parts"]]
    known = [value for line in lines for _, value in line["points"] if value is not None]
    limits = [{"word": word, "value": value} for word, value in trial["limits"]]
    log = _logarithmic([*known, *(each["value"] for each in limits)])
    floor = floor_of(known, [each["value"] for each in limits]) if log else None
    return {
        "lines": lines,
        "spans": [
            {"phase": phase, "first": first, "last": last}
            for part in trial["parts"]
            for phase, first, last in part["spans"]
        ],
        "limits": limits,
        "log": log,
        "floor": floor,
        "below": 0 if floor is None else sum(value < floor for value in known),
        "more": trial["more_parts"],
        "alt": _in_words(trial, known, limits),
    }


def _points(values: Sequence[Sequence[Any]]) -> list[list[Any]]:
    x = np.array([step for step, _ in values], dtype=np.float64)
    y = np.array([np.nan if value is None else value for _, value in values], dtype=np.float64)
    steps, thinned = thin(x, y, max_points=_POINTS)
    return [[int(step), None if np.isnan(value) else float(value)] for step, value in zip(steps, thinned, strict=True)]


def _logarithmic(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > DECADES


def _in_words(trial: Row, known: Sequence[float], limits: Sequence[Row]) -> str:
    between = f"between {number(min(known))} and {number(max(known))}" if known else "never measured"
    compared = ", ".join(f"{each['word']} {number(each['value'])}" for each in limits)
    return f"The rule's input over {trial['steps']:,} steps, {between}{f'; {compared}' if compared else ''}."
