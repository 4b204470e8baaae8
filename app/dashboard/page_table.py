"""The dashboard's pages, in the order of their tabs: the one place where a page is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Page:
    """A page of the dashboard, drawn by `draw` of the module in `views/` that has the name of its path; that of "" is `overview`.

    Attributes:
        path: in the address; "" for the first one.
        title: of its tab.
        about: what it answers and how to read it, for somebody who has never seen it: three sentences at most.
        panels: modules in `browser/` that it draws with; the browser fetches them together with the page.
        acts: whether something can be changed from it.
        of_home: whether it has something to say without a run, or about one that has no step yet.
    """

    path: str
    title: str
    about: str
    panels: tuple[str, ...]
    acts: bool = False
    of_home: bool = False


PAGES: Final = (
    Page(
        "",
        "Overview",
        "Engine and trainer should compute the same log-probability for the same token; this page says "
        "whether they do. The banner is the verdict: since which step, which layer is at fault, and what "
        "to do. Tiles compare the latest values with what is usual for this run; click a name for its "
        "formula.",
        ("report", "tiles", "chart"),
    ),
    Page(
        "diagnosis",
        "Diagnosis",
        "What explains the gap, layer by layer in the order in which they are ruled out, each cause with its "
        "evidence, share, onset and fix; the banner names the one to act on. Repair semantic faults first, "
        "then the inference path; importance sampling is for what remains.",
        ("report", "parity"),
        acts=True,
    ),
    Page(
        "mismatch",
        "Mismatch",
        "Every metric of the gap, for each pair of policies: engine and trainer (backend), trainer before "
        "and at the update (update), both (total). Click a name for its formula and its history. Density, "
        "profiles and slices show which tokens carry the gap.",
        ("report", "chart", "mismatch", "heatmap", "profiles", "slices"),
    ),
    Page(
        "weights",
        "Weights",
        "Which weights sampled the tokens of each step, and how many updates old they were. A replica "
        "that missed an update and weights that changed unannounced are named here. Lag widens the gap "
        "without any fault, so look here before you blame the engine.",
        ("report", "weights", "chart", "points"),
    ),
    Page(
        "tokens",
        "Tokens",
        "The sequences with the largest gap, token by token: what the engine reported beside what the "
        "trainer computed. The same place wrong in every sequence points to the template or the mask. "
        "Rare tokens off everywhere point to arithmetic.",
        ("tokens",),
    ),
    Page(
        "compare",
        "Compare",
        "Several runs on one axis: which settings differ, and which metrics, with intervals. Align runs "
        "by onset to see whether they break the same way.",
        ("compare",),
    ),
    Page(
        "alerts",
        "Alerts",
        "Which rules fire now, who acknowledged them, and where notifications went. Edit a rule to see on "
        "which recorded steps it would have fired, before you save it.",
        ("report", "rules", "token_form"),
        acts=True,
    ),
    Page(
        "actions",
        "Actions",
        "Automatic correction switches masked importance sampling on only when the gap grows late in "
        "training and nothing upstream is broken. Every decision is listed with its reason, and whether "
        "the trainer acknowledged it. Approve, refuse or stop it here.",
        ("report", "correction_trend", "token_form"),
        acts=True,
    ),
    Page(
        "data",
        "Data",
        "What was recorded, what was dropped or quarantined and why, and how far the service is behind. "
        "Query it below in SQL, which can read but never write.",
        ("data", "report", "sql"),
        acts=True,
        of_home=True,
    ),
)
BY_PATH: Final[Mapping[str, Page]] = {page.path: page for page in PAGES}
