"""Runs every benchmark of this folder: one table on the screen, one JSON file.

    python tests/benchmarks/run.py [--json FILE] [--history FILE] [TOPIC ...]

Exit code 1 when a stated target is not met, or a ratio is worse than in the history, so that a regression is seen where it is made.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import history
from figure import Figure

FOLDER = Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent / "support"))  # what benchmarks share with tests: `processes`
HEADER = ("figure", "value", "baseline", "ratio", "target", "")


def topics() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    digits = 4 if not value or not math.isfinite(value) else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f} {unit}".strip()


def row(figure: Figure) -> tuple[str, ...]:
    baseline = f"{number(figure.baseline_value, figure.unit)} ({figure.baseline})" if figure.baseline else "–"
    verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
    return figure.name, number(figure.value, figure.unit), baseline, number(figure.ratio), figure.target or "–", verdict


def table(figures: list[Figure]) -> str:
    rows = [HEADER, *map(row, figures)]
    widths = [max(len(line[i]) for line in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows]
    notes = [f"  {figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], *(["", "notes", *notes] if notes else [])])


def machine() -> dict[str, str | int | None]:
    return {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}


def measure(chosen: list[str]) -> list[Figure]:
    figures: list[Figure] = []
    for topic in chosen:
        started = time.perf_counter()
        print(f"{topic} …", end=" ", file=sys.stderr, flush=True)
        figures += importlib.import_module(f"bench_{topic}").measure()
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"one of: {', '.join(topics())} (default: all)")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the JSON goes")
    parser.add_argument("--history", type=Path, help="ratios of earlier runs, a line each: compared with, and added to")
    options = parser.parse_args()
    unknown = set(options.topics) - set(topics())
    if unknown:
        parser.error(f"unknown topic {', '.join(sorted(unknown))}; choose from {', '.join(topics())}")
    figures = measure(options.topics or topics())
    print(table(figures))
    document = {"machine": machine(), "figures": [{**dataclasses.asdict(f), "ratio": f.ratio} for f in figures]}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    worse = [] if options.history is None else judged(options.history, figures)
    return int(bool(worse) or any(figure.met is False for figure in figures))


def judged(file: Path, figures: list[Figure]) -> list[str]:
    worse = history.worse(figures, history.read(file, machine()))
    history.append(file, datetime.now(UTC).isoformat(timespec="seconds"), machine(), figures)
    print("\n".join(["", "worse than usual", *(f"  {line}" for line in worse or ["nothing"])]))
    return worse


if __name__ == "__main__":
    sys.exit(main())
