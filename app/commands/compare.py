"""`logprobe compare RUN… --baseline RUN`: compare runs with a baseline, metric by metric.

With ``--recipe``, check a run's configuration against a recipe, see `logprobe.app.view.parity`. A RUN is a run of the
data directory, or ``HOME:RUN``. No service is needed. The exit code is 0 for any verdict. The JSON form is public API,
one document. Unknown values are null:

    {"baseline": {"run", "steps", "growth": {"verdict", "since_step", …}}, "align",
     "runs": [{"run", "steps", "common", "beyond", "leaves_at", "growth", "cell",
               "metrics": [{"metric", "label", "unit", "verdict": "same|better|worse|differs|unknown", "reason",
                            "level": {"value", "reference", "difference", "low", "high", "side"}, "ratio", "area",
                            "final", "reference_final", "trajectory": {…, "blocks": [{"first_step", "last_step",
                                "value", …}]}}],
               "relevant": [settings that parity depends on and that differ], "differences": [others]}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from logprobe.app.runs import find
from logprobe.app.surface.arguments import Arguments, home_path, refuse_usage
from logprobe.app.text import comparison, tables
from logprobe.app.text.terminal import progress
from logprobe.app.view import parity
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.compare import Comparison, History, Pairing, Place, Places, compared, history
from logprobe.monitor.compare.comparison import METRICS
from logprobe.monitor.judging.diagnosing import diagnosis_of
from logprobe.monitor.judging.document import leading
from logprobe.monitor.judging.named import told


def run(arguments: Arguments) -> int:
    """Print the comparison."""
    if (arguments.baseline is None) == (arguments.recipe is None):
        refuse_usage("pass --baseline RUN, or --recipe for one run")
    return _by_baseline(arguments) if arguments.recipe is None else _by_recipe(arguments)


def _by_recipe(arguments: Arguments) -> int:
    """Compare the configuration and trend of one run with a recipe. Return 0 at parity."""
    if len(arguments.names) != 1 or arguments.metric:
        refuse_usage("--recipe: name one run, without --metric")
    return parity.show(home_path(arguments), arguments.names[0], arguments.recipe or None, as_json=arguments.json)


def _by_baseline(arguments: Arguments) -> int:
    metrics = tuple(arguments.metric or METRICS)
    with Places(arguments.home) as places:
        reference, *others = _histories(arguments, metrics, places)
        result = compared(others, reference, axis=arguments.align, metrics=metrics)
        asked = dict(zip((other.label for other in others), arguments.names, strict=True))
        why = (
            {}
            if arguments.json
            else {
                p.run: _why(find(places, asked[p.run]))
                for p in result.pairings
                if p.of("worse") or comparison.goes_bad(p)
            }
        )
    tables.show(result.document(), lambda: text(result, why), as_json=arguments.json)
    return 0


def _why(place: Place) -> str:
    """Return the leading finding of a run that is worse, or "" if no finding is alarming."""
    first = leading(diagnosis_of(place.source, place.run)[0])
    return "" if first is None else f"{first['cause'].replace('_', ' ')}: {first['explanation']} {told(first)}"


def _histories(arguments: Arguments, metrics: tuple[str, ...], places: Places) -> list[History]:
    """Read the histories of the runs, the baseline first."""
    names, histories = [arguments.baseline, *arguments.names], []
    with progress("reading runs", len(names)) as done:
        for name in names:
            histories.append(history(find(places, name), metrics))
            done(len(histories))
    return histories


def text(result: Comparison, why: Mapping[str, str] | None = None) -> str:
    """Return the comparison as text, with a sentence and numbers per run.

    `why`: cause by run, for runs that are worse.
    """
    lines = []
    for pairing in result.pairings:
        lines.append(tables.paragraph(comparison.sentence(pairing, result.axis)))
        if because := (why or {}).get(pairing.run):
            lines.append(tables.paragraph(because, first="  why: "))
    for pairing in result.pairings:
        lines += ["", *_pairing(pairing, result.baseline)]
    lines += ["", tables.fitted(comparison.ONSETS, comparison.onset_rows(result))]
    return "\n".join(lines) + "\n"


def _pairing(pairing: Pairing, baseline: str) -> Iterator[str]:
    """Yield the lines about differing settings, then the lines about each metric."""
    settings = [*pairing.relevant, *pairing.differences]
    if settings:
        shown = [[item.fact, item.words, item.reference_words] for item in settings]
        yield tables.fitted(["differing setting", pairing.run, baseline], shown)
        yield ""
    yield harmless(f"{pairing.run} against {baseline}: {pairing.common} of {pairing.steps} steps in common")
    yield tables.fitted(comparison.COLUMNS, list(map(comparison.verdict_row, pairing.metrics)))
