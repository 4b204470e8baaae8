"""Diagnosis: the evidence, layer by layer, and what is not measured."""

from __future__ import annotations

from logprobe.app.dashboard.data.feed import Run, RunView
from logprobe.app.dashboard.pages.diagnosis import diagnosis_blocks
from logprobe.app.dashboard.views.page import live, report
from logprobe.app.dashboard.views.session import guarded


def diagnosis() -> None:
    """Draws the page."""
    live("diagnosis", _run)


def _run(_: Run, view: RunView) -> None:
    with guarded("diagnosis"):
        report("diagnosis", {"version": view.version, "label": "diagnosis", "blocks": diagnosis_blocks(view)})
