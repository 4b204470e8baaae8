"""The declarations of all pages of the dashboard, in the order of their tabs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Page:
    """A page, drawn by ``draw(run)`` of a module in `pages/`, or by ``draw(look, run)`` if `of_home` is true.

    Attributes:
        path: path in the URL, "" for the first page.
        title: title of its tab.
        acts: true if the page has actions, which may require the token.
        of_home: true if the page can be drawn without a run, or for a run without steps.
        of_all: true if the page covers all runs, so that no run has to be chosen.
    """

    path: str
    title: str
    acts: bool = False
    of_home: bool = False
    of_all: bool = False

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.path or "overview"


PAGES: Final = (
    Page("runs", "Runs", of_home=True, of_all=True),
    Page("", "Overview"),
    Page("diagnosis", "Diagnosis", acts=True),
    Page("mismatch", "Mismatch"),
    Page("tokens", "Tokens"),
    Page("compare", "Compare"),
    Page("alerts", "Alerts", acts=True, of_home=True),
    Page("correction", "Correction", acts=True),
    Page("data", "Data", acts=True, of_home=True),
)
BY_PATH: Final[Mapping[str, Page]] = {page.path: page for page in PAGES}
