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

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.app.surface.arguments import require_run
from logprobe.app.text import tables
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.judging.parity import Parity, Setting, compare
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.reader import Reader, open_reader

NOT_AT_PARITY: Final = 2

_SHIPPED: Final = "the built-in recipe"
_RECIPE: Final = (".yaml", ".yml")
_SENTENCES: Final = {
    "at_parity": "{run} is at parity with {reference}",
    "not_at_parity": "{run} is NOT at parity with {reference}",
    "unknown": "cannot determine whether {run} is at parity with {reference}",
}


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
        return compare(reader, name, name=_SHIPPED)
    if reference not in runs and reference.endswith(_RECIPE):
        return compare(reader, name, recipe=parity_recipe.read(Path(reference)), name=reference)
    require_run(reference, runs)
    return compare(reader, name, reference=reference)


def text(parity: Parity) -> str:
    """Return the comparison as text: verdict, reasons with remedies, then the checks."""
    sentence = _SENTENCES[parity.verdict].format(run=parity.run, reference=parity.reference)
    lines = [harmless(sentence), *(f"  - {harmless(reason)}" for reason in parity.reasons)]
    remedies = [check for check in parity.checks if check.verdict == "not_at_parity"]
    if remedies:
        lines += ["", "what to do", *(f"  - {check.fix}: {check.why}" for check in remedies)]
    lines += ["", _checks(parity), "", _settings([item for check in parity.checks for item in check.settings], parity)]
    if parity.trajectories:
        rows = [[item.label, item.verdict, item.leaves_step, item.reason] for item in parity.trajectories]
        lines += ["", tables.fitted(["metric", "verdict", "step", "how"], rows)]
    if parity.differences:
        lines += ["", "other differing settings", _settings(parity.differences, parity)]
    return "\n".join(lines) + "\n"


def _checks(parity: Parity) -> str:
    marks = {"at_parity": "ok", "not_at_parity": "NOT MET", "unknown": "unknown"}
    return tables.fitted(
        ["check", "layer", ""],
        [
            [check.name, (check.layer or "").replace("_", " "), marks[check.verdict]]
            for check in parity.checks
            if check.layer or check.verdict != "at_parity"
        ],
    )


def _settings(settings: Iterable[Setting], parity: Parity) -> str:
    """Return every setting once, in the order given, as a table."""
    compared = any(check.reference is not None for check in parity.checks)
    rows = {item.fact: _row(item, compared=compared) for item in settings}
    head = ["setting", parity.run, *([parity.reference, ""] if compared else []), "who set it"]
    return tables.fitted(head, list(rows.values()))


def _row(item: Setting, *, compared: bool) -> Sequence[Any]:
    differ = "differs" if item.words != item.reference_words else ""
    return [item.fact, item.words, *([item.reference_words, differ] if compared else []), item.provenance or ""]
