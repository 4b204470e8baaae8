"""The report of a soak: slopes per hour of what was sampled, as a Markdown table."""

from __future__ import annotations

import csv
import platform
from pathlib import Path

import numpy as np
from recording import WEIGHTS_EVERY
from slopes import Slope, slope

# Column → unit, and whether it must not grow.
ROWS = {
    "rss_mib": ("MiB", True), "pss_mib": ("MiB", True), "anonymous_mib": ("MiB", True), "arenas": ("", True), "threads": ("", True),
    "fds": ("", True), "duckdb_mib": ("MiB", True), "wal_mib": ("MiB", True), "store_mib": ("MiB", False), "used_mib": ("MiB", False),
    "raw_mib": ("MiB", False), "spool_mib": ("MiB", True), "files": ("", False), "statistics_rows": ("", False), "steps": ("", False),
    "cpu_s": ("s", False), "recorder_rss_mib": ("MiB", True), "recorder_threads": ("", True), "recorder_fds": ("", True),
    "load": ("", False),
}  # fmt: skip


def series(path: Path) -> dict[str, np.ndarray]:
    """Columns of the samples, NaN where nothing was measured."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]} if rows else {}


def write_report(options) -> list[str]:
    """Writes the table; → what grows and must not."""
    columns = series(options.csv)
    warm = columns["seconds"] >= 60 * options.warm_up
    hours = columns["seconds"][warm] / 3600
    found = {name: slope(hours, columns[name][warm]) for name in ROWS if name in columns}
    grown = [name for name, line in found.items() if ROWS[name][1] and line and line.trend == "grows"]
    options.report.write_text("\n".join([*_head(options, columns, warm), *_table(found), "", _verdict(grown), ""]))
    return grown


def _head(options, columns, warm) -> list[str]:
    minutes = columns["seconds"][-1] / 60
    steps = np.nanmax(columns["steps"])
    return [
        f"# Soak of {minutes:.0f} minutes",
        "",
        (
            f"{options.runs} run(s), {options.steps_per_second:g} steps/s asked for, {steps / columns['seconds'][-1]:.1f} stored, "
            f"{options.sequences} sequences of {options.tokens} tokens a step, new weights every {WEIGHTS_EVERY} steps, {int(warm.sum())} samples after {options.warm_up:g} "
            f"minutes of warm-up; service arguments: {' '.join(options.service) or 'none'}; {platform.machine()}, "
            f"median load {np.nanmedian(columns['load']):.1f}."
        ),
        "",
        "Slope per hour: least squares, 95 % interval by Newey–West with a bandwidth of a tenth of the samples.",
        "",
    ]


def _table(found: dict[str, Slope | None]) -> list[str]:
    lines = [
        "| what | first tenth | last tenth | per hour | 95 % interval | Theil–Sen | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, line in found.items():
        unit, bounded = ROWS[name]
        if line is None:
            lines.append(f"| {name} | – | – | too few samples | | | |")
            continue
        word = line.trend if bounded else ""
        numbers = (line.first, line.last, line.per_hour)
        middle = " | ".join(f"{value:,.1f} {unit}".strip() for value in numbers)
        lines.append(f"| {name} | {middle} | {line.low:,.1f} … {line.high:,.1f} | {line.robust:,.1f} | {word} |")
    return lines


def _verdict(grown: list[str]) -> str:
    return f"Still grows: {', '.join(grown)}." if grown else "Nothing grows that must not."
