"""The report of a comparison: verdicts first, then curves, then what was set up differently. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from logprobe.app.numbers import number
from logprobe.app.report.chart import COLOURS, Chart, Line, figure, legend
from logprobe.app.report.html import Markup, badge, element, joined, listing, page, section, table
from logprobe.monitor.compare import Comparison, MetricVerdict, Pairing
from logprobe.monitor.compare.axes import AXES, Axis, where
from logprobe.monitor.compare.history import K3
from logprobe.monitor.compare.ratio import ratios
from logprobe.monitor.diagnosis.onset import Growth
from logprobe.monitor.diagnosis.parity import Setting

TONES: Final = {"worse": "bad", "better": "good", "same": "good", "differs": "unsure", "unknown": "unsure"}
# Of a table of verdicts, here and on the command line.
COLUMNS: Final = (
    "metric",
    "verdict",
    "run",
    "baseline",
    "ratio",
    "final",
    "baseline's final",
    "area",
    "difference [interval]",
)
ONSETS: Final = ("run", "K3 leaves the baseline", "by its own past", "since step", "doubles in steps")
_SHOWN: Final = 4  # metrics in a sentence


def report(comparison: Comparison) -> str:
    """The whole document. The baseline has colour 0, runs those after it."""
    colours = {run.label: number % COLOURS for number, run in enumerate(comparison.histories)}
    return page(
        f"Comparison with {comparison.baseline}",
        element("h1", f"Compared with {comparison.baseline}"),
        listing(sentence(pairing, comparison.axis) for pairing in comparison.pairings),
        section("Verdicts", *(_verdicts(pairing) for pairing in comparison.pairings)),
        section("Onsets", onsets(comparison)),
        section("Curves", legend(colours), element("div", *_overlays(comparison, colours), class_="charts")),
        section("Ratio to the baseline", *_ratios(comparison, colours)),
        section("Configuration", *(_settings(pairing, comparison.baseline) for pairing in comparison.pairings)),
    )


def sentence(pairing: Pairing, axis: Axis = "step") -> str:
    """The outcome for one run in a sentence that begins with its name."""
    return f"{pairing.run}: {outcome(pairing, axis)}"


def outcome(pairing: Pairing, axis: Axis = "step") -> str:
    """The outcome for one run."""
    worse, better, same, unknown = (pairing.of(verdict) for verdict in ("worse", "better", "same", "unknown"))
    parts = [f"{word} in {_names(items)}" for word, items in (("worse", worse), ("better", better)) if items]
    parts += [] if parts else [f"the same in {len(same)} of {len(pairing.metrics)} metrics"]
    parts += [f"unknown in {len(unknown)}"] if unknown else []
    left = "" if pairing.leaves_at is None else f"; K3 leaves the baseline {where(pairing.leaves_at, axis)}"
    return f"{', '.join(parts)}{left}"


def _names(items: Sequence[MetricVerdict]) -> str:
    names = [brief(item.label) for item in items[:_SHOWN]]
    return ", ".join(names) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")


def brief(label: str) -> str:
    """A metric's name where space is short: what it is the mean of, and of no pair when it is the usual one.

    >>> brief("ρ, mean (backend), distance from 1"), brief("KL (k3) (update)")
    ('ρ', 'KL (k3) (update)')
    """
    return label.partition(",")[0].removesuffix(" (backend)")


def _verdicts(pairing: Pairing) -> Markup:
    rows = [
        [item.label, badge(item.verdict, TONES[item.verdict]), *numbers(item), item.reason] for item in pairing.metrics
    ]
    note = f"{pairing.run}: {pairing.common} of {pairing.steps} steps are common with the baseline"
    return table(note, COLUMNS, rows)


def numbers(item: MetricVerdict) -> list[str]:
    """Level, baseline's level, ratio, final value, baseline's final value, area."""
    levels = (None, None) if item.level is None else (item.level.value, item.level.reference)
    return [number(value) for value in (*levels, item.ratio, item.final, item.reference_final, item.area)]


def onsets(comparison: Comparison) -> Markup:
    """When each run's K3 left the baseline, and when it began to grow by its own past."""
    return table("K3 of each run", ONSETS, onset_rows(comparison))


def onset_rows(comparison: Comparison) -> list[list[str]]:
    """Rows under `ONSETS`, the baseline's first."""
    first, *others = comparison.histories
    rows = [[first.label, "is the baseline", *growth_words(first.growth)]]
    for run, pairing in zip(others, comparison.pairings, strict=True):
        rows.append([run.label, _left(pairing, comparison.axis), *growth_words(run.growth)])
    return rows


def _left(pairing: Pairing, axis: Axis) -> str:
    if pairing.leaves_at is not None:
        return where(pairing.leaves_at, axis)
    known = any(item.metric == K3 and item.verdict != "unknown" for item in pairing.metrics)
    return "does not" if known else "–"


def growth_words(growth: Growth) -> list[str]:
    """Verdict, onset, doubling time. A gap that is steady can be a large one: that does not make a run healthy."""
    word = "steady" if growth.verdict == "healthy" else growth.verdict.replace("_", " ")
    return [word, number(growth.since_step), number(growth.doubling_steps)]


def _overlays(comparison: Comparison, colours: dict[str, int]) -> Iterator[Markup]:
    labels = {item.metric: item for item in comparison.pairings[0].metrics}
    for metric, item in labels.items():
        overlay = comparison.overlay(metric)
        lines = [Line(label, points, colours[label], gaps=False) for label, points in overlay.items()]
        alt = alt_of(
            comparison, [found for each in comparison.pairings for found in each.metrics if found.metric == metric]
        )
        title = item.label.partition(", distance")[0]
        yield figure(Chart(title, alt, lines, x_label=AXES[comparison.axis], unit=item.unit))


def alt_of(comparison: Comparison, items: Sequence[MetricVerdict]) -> str:
    """A metric's chart in words; `items`: its verdict for each run."""
    drawn = ", ".join(comparison.overlay(items[0].metric)) or "no run"
    verdicts = "; ".join(
        f"{pairing.run} {item.verdict}" for pairing, item in zip(comparison.pairings, items, strict=True)
    )
    return f"{items[0].label} of {drawn} over {AXES[comparison.axis]}. Against {comparison.baseline}: {verdicts}."


def _ratios(comparison: Comparison, colours: dict[str, int]) -> Iterator[Markup]:
    yield element(
        "p",
        "Block by block; the shaded band is what noise and margin explain. A metric that should be 0 or 1 is compared by its distance from there.",
        class_="note",
    )
    for pairing, width in zip(comparison.pairings, comparison.widths, strict=True):
        charts = [_ratio(pairing.run, item, colours[pairing.run], width, comparison) for item in pairing.metrics]
        drawn = [chart for chart in charts if chart is not None]
        yield element("h3", pairing.run)
        yield element("div", *map(figure, drawn), class_="charts") if drawn else element("p", "Too few common steps.")


def _ratio(run: str, item: MetricVerdict, colour: int, width: float, comparison: Comparison) -> Chart | None:
    found = ratios(item.trajectory, width)
    if not found:
        return None
    alt = f"{item.label} of {run} over that of {comparison.baseline}: {item.verdict}. {item.reason}"
    return Chart(
        item.label.partition(", distance")[0],
        alt,
        [Line(run, [(ratio.at, ratio.value) for ratio in found], colour)],
        x_label=AXES[comparison.axis],
        band=[(ratio.at, ratio.low, ratio.high) for ratio in found],
    )


def _settings(pairing: Pairing, baseline: str) -> Markup:
    title = element("h3", pairing.run)
    if not (pairing.relevant or pairing.differences):
        return joined([title, element("p", "No recorded setting differs.")])
    rows: list[Sequence[Any]] = [_row(item, "yes") for item in pairing.relevant]
    rows += [_row(item, "") for item in pairing.differences]
    header = ["setting", pairing.run, baseline, "parity depends on it"]
    return joined([title, table("Settings that differ", header, rows)])


def _row(item: Setting, depends: str) -> Sequence[Any]:
    return [item.fact, item.words, item.reference_words, depends]
