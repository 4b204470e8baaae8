"""`logprobe compare RUN --recipe FILE|RUN`: compare setup and behaviour of a run with a reference.

The exit code is 0 at parity and 2 otherwise, also if parity is unknown. The JSON form is public API, one document.
Unknown values are null:

    {"run": …, "reference": …, "verdict": "at_parity|not_at_parity|unknown", "reasons": […],
     "checks": [{"name", "layer", "expected", "outcome", "reference", "verdict", "why", "fix",
                 "settings": [{"fact", "known", "value", "provenance", "reference_known", "reference",
                     "reference_provenance"}]}],
     "trajectories": [{"metric", "label", "verdict": "tracks|leaves|unknown", "reason", "leaves_step", "back_step",
                       "side", "blocks": [{"first_step", "last_step", "value", "reference", "low", "high"}]}],
     "differences": [settings that parity does not depend on]}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from logprobe.app.surface.arguments import require_run
from logprobe.app.text import tables
from logprobe.app.view import story
from logprobe.app.view.story import Points, Section, Table
from logprobe.monitor import queries
from logprobe.monitor.judging.parity import Check, Parity, compare
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.reader import Reader, open_reader

NOT_AT_PARITY: Final = 2

SHIPPED: Final = "the built-in recipe"
_RECIPE: Final = (".yaml", ".yml")
_SENTENCES: Final = {
    "at_parity": "{run} is at parity with {reference}",
    "not_at_parity": "{run} is NOT at parity with {reference}",
    "unknown": "cannot determine whether {run} is at parity with {reference}",
}
_VERDICTS: Final = {"not_at_parity": "NOT MET", "unknown": "unknown", "at_parity": "met"}  # in the order of a table
_HEAD: Final = ("requirement", "found", "required", "verdict", "why and fix")
MOST: Final = 4  # settings of a check that are shown


def show(home: str, run: str, reference: str | None, *, as_json: bool) -> int:
    """Print the comparison of a run with a recipe or another run. Return the exit code.

    `reference`: recipe file, or run of the data directory, or None for the built-in recipe.
    """
    with open_reader(home) as reader:
        parity = _compare(reader, run, reference)
    tables.show(parity.document(), lambda: text(parity), as_json=as_json)
    return 0 if parity.verdict == "at_parity" else NOT_AT_PARITY


def _compare(reader: Reader, name: str, reference: str | None) -> Parity:
    runs = queries.app_runs(reader)["run"].to_pylist()
    require_run(name, runs)
    if reference is None:
        return compare(reader, name, name=SHIPPED)
    if reference not in runs and reference.endswith(_RECIPE):
        return compare(reader, name, recipe=parity_recipe.read(Path(reference)), name=reference)
    require_run(reference, runs)
    return compare(reader, name, reference=reference)


def text(parity: Parity) -> str:
    """Return the comparison as text."""
    return story.terminal(sentence(parity), sections(parity))


def sentence(parity: Parity) -> str:
    """Return the verdict of the comparison."""
    return _SENTENCES[parity.verdict].format(run=parity.run, reference=parity.reference)


def sections(parity: Parity) -> Iterator[Section]:
    """Yield reasons, requirements (violated ones first), metrics over steps, and other differing settings."""
    if parity.reasons:
        yield Section("", [Points(parity.reasons)])
    order = list(_VERDICTS)
    checks = sorted(parity.checks, key=lambda check: order.index(check.verdict))
    yield Section("requirements", [Table(_HEAD, list(map(row, checks)))])
    if parity.trajectories:
        rows = [[item.label, item.verdict, item.leaves_step, item.reason] for item in parity.trajectories]
        yield Section("metrics over steps", [Table(["metric", "verdict", "step", "how"], rows)])
    if parity.differences:
        rows = [[item.fact, item.words, item.reference_words] for item in parity.differences]
        yield Section("other differing settings", [Table(["setting", parity.run, parity.reference], rows)])


def row(check: Check) -> list[str]:
    """Return a requirement with the recorded values: name, value and source."""
    found = [
        f"`{item.fact}` {item.words}{f' ({item.provenance})' if item.provenance else ''}"
        for item in check.settings[:MOST]
    ]
    more = len(check.settings) - MOST
    found += [f"{more} more"] if more > 0 else []
    layer = f" ({check.layer.replace('_', ' ')})" if check.layer else ""
    advice = "" if check.verdict == "at_parity" else f"{check.why}; {check.fix}"
    return [f"{check.name}{layer}", "; ".join(found), check.expected, _VERDICTS[check.verdict], advice]
