"""The top bar's data: runs, what the chosen one is doing, how far behind the service is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from logprobe.app.dashboard.data.feed import Snapshot
from logprobe.app.dashboard.elements.links import link
from logprobe.app.dashboard.page_table import BY_PATH, Page
from logprobe.app.runs import Run
from logprobe.app.text.judgement import word
from logprobe.app.text.numbers import duration
from logprobe.monitor.judgement import SEVERITIES

_NOTICEABLE_SECONDS: Final = 0.05
_EXACT_SECONDS: Final = 10.0


def bar_of(
    snapshot: Snapshot,
    run: Run | None,
    *,
    asked: str | None,
    now: datetime,
    interval: float,
    pages: Sequence[Page] = (),
    page: str = "",
) -> dict[str, object]:
    """Data of `browser/bar.js`. `asked`: the run the address names; `interval`: seconds until the bar asks for news.

    `pages`: of the dashboard, in the order of their tabs; `page`: path of the one that is open.
    """
    away = None if snapshot.away_since is None else _age(now, snapshot.away_since)
    chosen = None if run is None else run.name
    return {
        "runs": [
            _run(listed) | (_facts(listed, now) if listed.name == chosen else {}) for listed in snapshot.runs or ()
        ],
        "selected": chosen,
        "severity": _severity(snapshot, run),
        "verdict": None if run is None else word(run.judgement),
        "lag": ingest_lag(snapshot.status),
        "away": away,
        "notices": [*_away(snapshot, away), *_problem(snapshot), *_unknown(run, asked)],
        "interval": interval,
        "pages": [_tab(tab, run, open=tab.path == page) for tab in pages],
    }


def _severity(snapshot: Snapshot, run: Run | None) -> str | None:
    """Of the run; without one of the worst that still runs, which is what the tab of all runs says."""
    if run is not None:
        return run.judgement.severity
    severities = {other.judgement.severity for other in snapshot.runs or () if not other.liveness.state.over}
    return next((severity for severity in SEVERITIES if severity in severities), None)


def _tab(page: Page, run: Run | None, *, open: bool) -> dict[str, object]:  # noqa: A002 -- of a tab
    tab = {"path": page.path, "key": page.key, "title": page.title, "open": open, "href": link(page.path, run)}
    return tab | _explained(page, run) if open else tab


def _explained(page: Page, run: Run | None) -> dict[str, object]:
    """What `browser/guide.js` says of the page that is open."""
    further = [
        {"path": path, "title": BY_PATH[path].title, "href": link(path, run), "words": words}
        for path, words in page.next.items()
    ]
    return {"about": page.about, "next": further, "parts": [list(part) for part in page.parts.items()]}


def _run(run: Run) -> dict[str, object]:
    """What the picker lists."""
    return {
        "name": run.name,
        "severity": run.judgement.severity,
        "state": run.liveness.state.value,
    }


def _facts(run: Run, now: datetime) -> dict[str, object]:
    """What the bar says of the run that is looked at."""
    return {
        "reason": run.liveness.reason,
        "step": run.last_step,
        "age": None if run.last_record is None else _age(now, run.last_record),
        "tokens": run.tokens,
        "sequences": run.sequences,
    }


def _age(now: datetime, then: datetime) -> float:
    return round(max(0.0, (now - then).total_seconds()), 1)


def _away(snapshot: Snapshot, away: float | None) -> list[dict[str, object]]:
    if away is None or snapshot.runs is None:  # with nothing to show, the page itself says so
        return []
    text = "The monitor service is not responding"
    return [{"kind": "away", "text": text, "age": away, "hint": "showing the last values · retrying every 2 s"}]


def _problem(snapshot: Snapshot) -> list[dict[str, object]]:
    return (
        []
        if snapshot.problem is None
        else [{"kind": "error", "text": snapshot.problem, "hint": "showing the last values"}]
    )


def _unknown(run: Run | None, asked: str | None) -> list[dict[str, object]]:
    if run is None or asked in {None, run.name}:
        return []
    return [{"kind": "info", "text": f"There is no run called {asked} here", "hint": f"showing the newest, {run.name}"}]


def ingest_lag(status: Mapping[str, Any]) -> str | None:
    """How long records wait until they are in the store, as the service says; None where it does not."""
    progress = ((status.get("jobs") or {}).get("ingest") or {}).get("progress") or {}
    backlog = status.get("backlog") or {}
    if "lag_seconds" not in progress and "oldest_seconds" not in backlog:
        return None
    # Null: nothing was, or is, waiting.
    seconds = max(progress.get("lag_seconds") or 0.0, backlog.get("oldest_seconds") or 0.0)
    if seconds < _NOTICEABLE_SECONDS:
        return "none"
    return f"{seconds:.1f} s" if seconds < _EXACT_SECONDS else duration(seconds)
