"""Runs: all runs of the home at a glance, the worst first."""

from __future__ import annotations

from logprobe.app.dashboard.data.feed import Snapshot
from logprobe.app.dashboard.pages.runs import MOST, Asked, listed, table_of
from logprobe.app.dashboard.views.empty_states import no_service, recording_snippet
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, guarded, home, read_once, rows_of
from logprobe.app.runs import Run


def draw(snapshot: Snapshot, run: Run | None) -> None:  # noqa: ARG001 -- it is about all of them
    """Draws the page."""
    if not snapshot.runs:
        (no_service if snapshot.runs is None else recording_snippet)(home())
        return
    with guarded("table of runs"):
        found = listed(snapshot.runs, _asked())
        shown = [(each.name, each.revision, each.news) for each in found.shown]
        names = [each.name for each in found.shown]
        glances = read_once("glances", tuple(shown), lambda: rows_of("app_runs_glance", runs=names)) if names else None
        show("runs", "runs", table_of(found, {row["run"]: row for row in glances or ()}))


def _asked() -> Asked:
    most = asked("rows") or ""
    return Asked(
        words=asked("q") or "",
        severity=asked("severity") or "",
        state=asked("state") or "",
        grouped=asked("group") == "prefix",
        most=int(most) if most.isascii() and most.isdigit() and len(most) <= 5 else MOST,  # noqa: PLR2004 - digits
    )
