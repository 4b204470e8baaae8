"""Runs: all runs of the home, and of those shown beside it, at a glance, the worst first; what of them is shown is in
the address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from logprobe.app.dashboard.data.feed import Snapshot
from logprobe.app.dashboard.data.other_places import Elsewhere, other_places
from logprobe.app.dashboard.elements.links import in_address, link
from logprobe.app.dashboard.views.empty_states import no_service, recording_snippet
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, read_once
from logprobe.app.runs import Run
from logprobe.app.text.judgement import headline, lateness
from logprobe.app.text.numbers import number
from logprobe.app.text.runs import Glance, line, matching, prefix, worst_first
from logprobe.monitor import queries
from logprobe.monitor.judgement import SEVERITIES

GROUPS: Final = ("prefix",)
_NOWHERE: Final = Elsewhere({}, ())
MOST: Final = 50  # rows of a screen; the search finds the others


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for: words of names and causes, a severity, a state (running or ended), groups (by
    "prefix"), and how many rows."""

    words: str = ""
    severity: str = ""
    state: str = ""
    group: str = ""
    most: int = MOST


@dataclass(frozen=True, slots=True)
class Listed:
    """The runs that fit, in their order, of all there are."""

    runs: Sequence[Run]
    of: int
    asked: Asked

    @property
    def shown(self) -> Sequence[Run]:
        """Those with a row."""
        return self.runs[: self.asked.most]


def listed(runs: Sequence[Run], asked: Asked) -> Listed:
    """The runs that are asked for, the worst first; grouped: the group with the worst run first."""
    matched = worst_first(matching(runs, asked.words, asked.severity, asked.state))
    if asked.group:
        first = {name: at for at, name in reversed(list(enumerate(group_of(run, asked.group) for run in matched)))}
        matched.sort(key=lambda run: first[group_of(run, asked.group)])
    return Listed(matched, len(runs), asked)


def group_of(run: Run, by: str) -> str:
    """Return the group of a run: the prefix of its name, or "" without groups."""
    return prefix(run.name) if by == "prefix" else ""


def table_of(listing: Listed, glances: Mapping[str, Glance], elsewhere: Elsewhere = _NOWHERE) -> dict[str, Any]:
    """Data of `browser/runs.js`. `glances`: rows of `app_runs_glance` by run, of those that are shown; `elsewhere`:
    which are of other places."""
    counts = Counter(run.judgement.severity for run in listing.runs)
    by = listing.asked.group
    groups = Counter(group_of(run, by) for run in listing.runs)
    parts = groupby(listing.shown, key=lambda run: group_of(run, by))
    return {
        "asked": {name: getattr(listing.asked, name) for name in ("words", "severity", "state", "group")},
        "severities": list(SEVERITIES),
        "summary": ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity]),
        "found": len(listing.runs),
        "of": listing.of,
        "more": max(0, len(listing.runs) - len(listing.shown)),
        "next": listing.asked.most + MOST,
        "groups": [
            {
                "name": name,
                "runs": groups[name],
                "rows": [_row(run, glances.get(run.name), elsewhere=run.name in elsewhere.runs) for run in part],
            }
            for name, part in parts
        ],
        "problems": list(elsewhere.problems),
    }


def _row(run: Run, glance: Glance | None, *, elsewhere: bool) -> dict[str, Any]:
    facts, shown = line(run, glance), headline(run.judgement)
    return {
        "run": run.name,
        "href": f"{link('compare', None)}&runs={quote(in_address([run.name]), safe='')}"
        if elsewhere
        else link("", run),
        "elsewhere": elsewhere,
        "severity": facts["severity"],
        "word": shown.word,
        "words": " ".join(part for part in (shown.words, lateness(run.judgement)) if part),
        "since": "–" if facts["since"] is None else f"{facts['since']:,}",
        "cause": (facts["cause"] or "") + (f"; {late.lower()}" if (late := lateness(run.judgement)) else ""),
        "alerts": ", ".join(facts["alerts"]),
        "acknowledged": facts["acknowledged_by"],
        "k3": number(facts["k3"]),
        "line": list((glance or {}).get("k3") or []),
        "lag": number(facts["lag"]),
        "correction": "–" if glance is None else facts["correction"],
        "state": facts["state"],
        "reason": run.liveness.reason,
        "step": "–" if facts["last_step"] is None else f"{facts['last_step']:,}",
    }


def draw(snapshot: Snapshot, run: Run | None) -> None:  # noqa: ARG001 -- it is about all of them
    """Draws the page."""
    elsewhere = other_places().look()
    if not snapshot.runs and not elsewhere.runs:
        (no_service if snapshot.runs is None else recording_snippet)(home())
        return
    with guarded("table of runs"):
        listing = listed([*(snapshot.runs or ()), *elsewhere.runs.values()], _asked())
        local = [of_run for of_run in listing.shown if of_run.name not in elsewhere.runs]
        names = [of_run.name for of_run in local]
        glances = (
            read_once(
                "glances",
                tuple((of_run.name, of_run.revision, of_run.news) for of_run in local),
                lambda: queries.app_runs_glance(feed(), runs=names).to_pylist(),
            )
            if names
            else None
        )
        rows = {row["run"]: row for row in glances or ()} | dict(elsewhere.glances)
        show("runs", "runs", table_of(listing, rows, elsewhere))


def _asked() -> Asked:
    most = asked("rows") or ""
    return Asked(
        words=asked("q") or "",
        severity=asked("severity") or "",
        state=asked("state") or "",
        group=group if (group := asked("group") or "") in GROUPS else "",
        most=int(most) if most.isascii() and most.isdigit() and len(most) <= 5 else MOST,  # noqa: PLR2004 - digits
    )
