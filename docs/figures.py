"""The story of a migration, drawn from recorded runs: figures 1, 4 and 5 of "vLLM V0 to V1: correctness before corrections".

    python docs/figures.py            # writes docs/images/migration-*.svg and rescue.svg, about a minute
    python docs/figures.py --rescue FILE…    # rescue.svg of these results of `make campaign NAME=rescue ARGS='--json FILE'`

The runs are those of `sample_data/`: a reference, a first attempt with two faults in the engine, and one with both repaired. They go
through ingest, and are compared as `logprobe compare` does; nothing is drawn that it would not say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from logprobe.app.demo.show import lay_down
from logprobe.app.ingesting import take
from logprobe.app.text.html import Markup, element, joined
from logprobe.app.view.chart import DASHES, HEIGHT, WIDTH, Chart, Line, drawing
from logprobe.monitor.compare import Comparison, Places, compare
from logprobe.monitor.home import Home
from logprobe.monitor.metrics.catalog import metric
from logprobe.monitor.recorded import RecordedRun

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
BASELINE: Final = "v0-reference"
RUNS: Final = ("v1-initial", "v1-fixed")
_LABELS: Final = {
    "v0-reference": "#0072b2",
    "v1-initial: raw log-probs, caches kept over updates": "#d55e00",
    "v1-fixed: both repaired": "#007a5a",
}
RESCUE: Final = "rescue"
_ARMS: Final = {
    "none": ("no correction", "#d55e00"),
    "mis": ("MIS from the first step", "#007a5a"),
    "tis": ("TIS from the first step", "#a05195"),
    "armed": ("armed logprobe", "#0072b2"),
}
_RESCUE_ALT: Final = (
    "Reward and K3 of a policy whose batches grow old from step 230 on: without a correction the reward falls from 0.51 to 0.36 and K3 "
    "grows past 1; with one it goes on rising; where logprobe switches one on, at step 281 and 378, it comes back."
)
_MANY: Final = 3  # runs that have a median worth drawing
_BLOCK: Final = 8  # steps that a point of the rescue's figure is the median of
_SMOOTH: Final = 9  # steps; the pale lines are the steps themselves


@dataclass(frozen=True)
class Panel:
    """One chart: a metric, and which runs; `BASELINE` is run 0."""

    key: str
    title: str
    runs: tuple[int, ...] = (0, 1, 2)
    log: bool | None = None


@dataclass(frozen=True)
class Figure:
    """One picture: the file's name, what it shows, its panels."""

    name: str
    alt: str
    panels: Sequence[Panel]


FIGURES: Final = (
    Figure(
        "migration-1-training",
        "Clip rate, KL, entropy and reward over 300 steps: the first attempt leaves the reference, the repaired run returns to it.",
        (
            Panel("total.clamp_log_ratio_new_old_indicator", "Clip rate"),
            Panel("total.kl_new_old", "KL new–old", log=True),
            Panel("entropy", "Entropy"),
            Panel("reward", "Reward"),
        ),
    ),
    Figure(
        "migration-4-ratio",
        "Mean policy ratio minus 1, in units of 1e-4: about 200 in the first attempt, rounding in the reference and in the repaired run.",
        (
            Panel("backend.ratio_deviation_1e4", "10⁴ · (mean ρ − 1)"),
            Panel("backend.ratio_deviation_1e4", "the same, without v1-initial", runs=(0, 2)),
        ),
    ),
    Figure(
        "migration-5-lag",
        "Weight lag over 300 steps: two thirds of an update in the first attempt, where requests go on through updates; none in the "
        "reference and in the repaired run.",
        (
            Panel("weight_lag_mean", "Weight lag, mean"),
            Panel("mixed_version_frac", "Sequences of more than one version"),
        ),
    ),
)


def compared(places: Places) -> Comparison:
    """Compare the runs with the reference, in all metrics that are drawn."""
    reference, *others = [places.find(name) for name in (BASELINE, *RUNS)]
    keys = dict.fromkeys(panel.key for figure in FIGURES for panel in figure.panels)
    return compare(others, reference, metrics=[*keys, "backend.k3_kl"])


def drawn(figure: Figure, found: Comparison) -> str:
    """The picture as SVG text."""
    return picture(figure.alt, [_chart(panel, found) for panel in figure.panels], _LABELS)


def _chart(panel: Panel, found: Comparison) -> Chart:
    overlay = found.overlay(panel.key)
    names = (BASELINE, *RUNS)
    lines = [line for run in panel.runs for line in _lines(names[run], run, overlay)]
    lines.sort(key=lambda line: line.opacity)  # the steps behind all medians
    return Chart(panel.title, panel.title, lines, unit=_unit(panel.key), log=panel.log or False)


def _unit(key: str) -> str:
    unit = metric(key).unit
    return "" if unit == "1e-4" else unit


def _lines(name: str, colour: int, overlay: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[Line]:
    points = overlay[name]
    yield Line(name, points, colour, opacity=0.22)
    yield Line(name, _medians(points), colour)


def _medians(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each step's median with its neighbours; at the ends with those that there are."""
    values = np.array([value for _, value in points])
    half = _SMOOTH // 2
    return [(x, float(np.median(values[max(at - half, 0) : at + half + 1]))) for at, (x, _) in enumerate(points)]


def thinned(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rescue's figure needs of what `make campaign NAME=rescue` measured: arm → reward and K3 of each of its runs, in blocks of steps."""
    arms = [arm for arm in _ARMS if any(run["arm"] == arm for run in results)]
    return {
        arm: {key: [_blocks(run[key]) for run in results if run["arm"] == arm] for key in ("reward", "k3")}
        for arm in arms
    }


def _blocks(values: Sequence[float]) -> list[float]:
    blocks = (values[at : at + _BLOCK] for at in range(0, len(values), _BLOCK))
    return [float(f"{np.median(block):.3g}") for block in blocks]


def rescue(measured: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> str:
    """The picture as SVG text: each run, pale behind the median of its arm where there are enough."""
    charts = [
        Chart(title, title, _of_arms(measured, key), log=key == "k3")
        for key, title in (("reward", "Reward"), ("k3", "K3"))
    ]
    return picture(_RESCUE_ALT, charts, dict(_ARMS[arm] for arm in measured))


def _of_arms(measured: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], key: str) -> list[Line]:
    lines = []
    for colour, (arm, runs) in enumerate(measured.items()):
        label, many = _ARMS[arm][0], len(runs[key]) >= _MANY
        lines += [Line(label, _points(values), colour, opacity=0.22 if many else 1) for values in runs[key]]
        lines += [Line(label, _points(np.median(runs[key], 0)), colour)] if many else []
    return sorted(lines, key=lambda line: line.opacity)


def _points(values: Iterable[float]) -> list[tuple[float, float]]:
    return [(_BLOCK * (at + 0.5), float(value)) for at, value in enumerate(values)]


def _write(name: str, text: str) -> None:
    path = IMAGES / name
    path.write_text(text, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> int:
    """Writes all pictures, or the rescue's alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rescue", type=Path, nargs="+", help="results of `make campaign NAME=rescue` to draw instead of those kept"
    )
    arguments = parser.parse_args()
    kept = IMAGES / f"{RESCUE}.json"
    if arguments.rescue:
        results = [run for path in arguments.rescue for run in json.loads(path.read_text())]
        _write(kept.name, json.dumps(thinned(results)) + "\n")
    _write(f"{RESCUE}.svg", rescue(json.loads(kept.read_text())))
    if arguments.rescue:
        return 0
    with TemporaryDirectory() as folder:
        for name in (BASELINE, *RUNS):
            lay_down(RecordedRun(ROOT / "sample_data" / name), Path(folder), datetime.now(UTC))
        take(Home(folder))
        with Places(folder) as places:
            found = compared(places)
    for figure in FIGURES:
        _write(f"{figure.name}.svg", drawn(figure, found))
    return 0


_TITLE, _LEGEND, _GAP, _MARGIN = 22.0, 26.0, 14.0, 10.0
_LETTER: Final = 6.6  # pixels of one in the legend, about
_STYLE: Final = (
    "text{fill:#5c6773;font:10.5px system-ui,-apple-system,'Segoe UI',sans-serif}.title{fill:#1b2129;font-size:12px;font-weight:600}"
    ".legend{fill:#1b2129;font-size:12px}.grid{stroke:#e3e7ec}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}"
    ".mark{stroke:#b3261e;stroke-dasharray:2 3}.band{fill:#475463;opacity:.16}"
)


def picture(alt: str, charts: Sequence[Chart], labels: Mapping[str, str], *, columns: int = 2) -> str:
    """The document.

    Args:
        alt: what it shows, in a sentence.
        charts: left to right, top to bottom.
        labels: of the lines, by their order as colours → the colour in CSS.
        columns: charts side by side.
    """
    rows = -(-len(charts) // columns)
    width = 2 * _MARGIN + columns * WIDTH + (columns - 1) * _GAP
    height = _MARGIN + _LEGEND + rows * (_TITLE + HEIGHT) + (rows - 1) * _GAP
    style = _STYLE + "".join(f".c{at}{{stroke:{color}}}" for at, color in enumerate(labels.values()))
    content = [
        element("title", alt),
        element("style", Markup(style)),
        element("rect", width="100%", height="100%", fill="#ffffff"),
        *_legend(list(labels)),
        *(_placed(chart, at % columns, at // columns) for at, chart in enumerate(charts)),
    ]
    box = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return str(element("svg", joined(content), xmlns="http://www.w3.org/2000/svg", role="img", **box)) + "\n"


def _legend(labels: Sequence[str]) -> Iterator[Markup]:
    x, y = _MARGIN, _MARGIN + 8
    for at, label in enumerate(labels):
        yield element("path", d=f"M{x:g} {y - 4:g}h26", class_=f"line c{at}", stroke_dasharray=DASHES[at])
        yield element("text", label, x=f"{x + 32:g}", y=f"{y:g}", class_="legend")
        x += 52 + _LETTER * len(label)


def _placed(chart: Chart, column: int, row: int) -> Markup:
    x, y = _MARGIN + column * (WIDTH + _GAP), _MARGIN + _LEGEND + row * (_TITLE + HEIGHT + _GAP)
    unit = f", {chart.unit}" if chart.unit else ""
    title = element("text", f"{chart.title}{unit}", y="14", class_="title")
    under = element("text", "step", x=f"{WIDTH - 8:g}", y="14", text_anchor="end")
    inside = element("g", drawing(chart), transform=f"translate(0 {_TITLE:g})")
    return element("g", title, under, inside, transform=f"translate({x:g} {y:g})")


if __name__ == "__main__":
    sys.exit(main())
