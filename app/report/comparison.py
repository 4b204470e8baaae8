"""The report of a comparison: verdicts first, then curves, then what was set up differently. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from logprobe.app.report.chart import COLOURS, Chart, Line, figure, legend
from logprobe.app.text.comparison import COLUMNS, ONSETS, TONES, alt_of, numbers, onset_rows, sentence
from logprobe.app.text.html import Markup, badge, element, joined, listing, page, section, table
from logprobe.monitor.compare import Comparison, MetricVerdict, Pairing
from logprobe.monitor.compare.comparison import AXES
from logprobe.monitor.compare.ratio import ratios
from logprobe.monitor.judging.parity import Setting


def report(comparison: Comparison) -> str:
    """The whole document. The baseline has colour 0, runs those after it."""
    colours = {run.label: number % COLOURS for number, run in enumerate(comparison.histories)}
    return page(
        f"Comparison with {comparison.baseline}",
        element("h1", f"Compared with {comparison.baseline}"),
        listing(sentence(pairing, comparison.axis) for pairing in comparison.pairings),
        section("Configuration", *(_settings(pairing, comparison.baseline) for pairing in comparison.pairings)),
        section("Verdicts", *(_verdicts(pairing) for pairing in comparison.pairings)),
        section("Onsets", onsets(comparison)),
        section("Curves", legend(colours), element("div", *_overlays(comparison, colours), class_="charts")),
        section("Ratio to the baseline", *_ratios(comparison, colours)),
    )


def _verdicts(pairing: Pairing) -> Markup:
    rows = [
        [item.label, badge(item.verdict, TONES[item.verdict]), *numbers(item), item.reason] for item in pairing.metrics
    ]
    note = f"{pairing.run}: {pairing.common} of {pairing.steps} steps are common with the baseline"
    return table(note, COLUMNS, rows)


def onsets(comparison: Comparison) -> Markup:
    """When each run's K3 left the baseline, and when it began to grow by its own past."""
    return table("K3 of each run", ONSETS, onset_rows(comparison))


def _overlays(comparison: Comparison, colours: dict[str, int]) -> Iterator[Markup]:
    labels = {item.metric: item for item in comparison.pairings[0].metrics}
    for metric, item in labels.items():
        overlay = comparison.overlay(metric)
        lines = [Line(label, points, colours[label], gaps=False) for label, points in overlay.items()]
        alt = alt_of(
            comparison,
            [verdict for pair in comparison.pairings for verdict in pair.metrics if verdict.metric == metric],
        )
        title = item.label.partition(", distance")[0]
        yield figure(Chart(title, alt, lines, x_label=AXES[comparison.axis], unit=item.unit))


def _ratios(comparison: Comparison, colours: dict[str, int]) -> Iterator[Markup]:
    yield element(
        "p",
        "Block by block; the shaded band is explained by noise and margin. A metric whose ideal is 0 or 1 is compared "
        "by its distance from it.",
        class_="note",
    )
    for pairing, width in zip(comparison.pairings, comparison.widths, strict=True):
        charts = [_ratio(pairing.run, item, colours[pairing.run], width, comparison) for item in pairing.metrics]
        drawn = [chart for chart in charts if chart is not None]
        yield element("h3", pairing.run)
        yield element("div", *map(figure, drawn), class_="charts") if drawn else element("p", "Too few common steps.")


def _ratio(run: str, item: MetricVerdict, colour: int, width: float, comparison: Comparison) -> Chart | None:
    points = ratios(item.trajectory, width)
    if not points:
        return None
    alt = f"{item.label} of {run} over that of {comparison.baseline}: {item.verdict}. {item.reason}"
    return Chart(
        item.label.partition(", distance")[0],
        alt,
        [Line(run, [(ratio.at, ratio.value) for ratio in points], colour)],
        x_label=AXES[comparison.axis],
        band=[(ratio.at, ratio.low, ratio.high) for ratio in points],
    )


def _settings(pairing: Pairing, baseline: str) -> Markup:
    title = element("h3", pairing.run)
    if not (pairing.relevant or pairing.differences):
        return joined([title, element("p", "No recorded settings differ.")])
    rows: list[Sequence[Any]] = [_row(item, "yes") for item in pairing.relevant]
    rows += [_row(item, "") for item in pairing.differences]
    header = ["setting", pairing.run, baseline, "required for parity"]
    return joined([title, table("Settings that differ", header, rows)])


def _row(item: Setting, depends: str) -> Sequence[Any]:
    return [item.fact, item.words, item.reference_words, depends]
