"""The soak: a real Recorder process per run and the real service for hours, and whether what must not grow has grown at the end.

    make campaign NAME=soak ARGS="--minutes 120"

Samples go to a CSV every few seconds. Of each column the medians of the first and of the last third after the warm-up are printed; exit
code 1 when memory, threads, open files or the spool have grown by more than a tenth.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "support")]

import measuring  # noqa: E402
import processes  # noqa: E402

from logprobe.app.processes.stack import SERVICE_ENVIRONMENT  # noqa: E402

# Column → by how much it may grow besides a tenth; None: it may grow.
COLUMNS: dict[str, float | None] = {
    **dict.fromkeys(("rss_mib", "pss_mib", "anonymous_mib", "recorder_rss_mib"), 16.0),
    **dict.fromkeys(("threads", "fds", "arenas", "recorder_threads", "recorder_fds"), 2.0),
    **dict.fromkeys(("wal_mib", "spool_mib"), 8.0),
    **dict.fromkeys(("store_mib", "raw_mib", "files", "statistics_rows", "steps", "sequences", "cpu_s", "load")),
}


def main() -> int:
    """Soak, then say what has grown."""
    options = arguments()
    with ExitStack() as stack:
        home = Path(options.home or stack.enter_context(tempfile.TemporaryDirectory(prefix="logprobe-soak-")))
        command = [sys.executable, "-m", "logprobe.app.processes.service", "--home", str(home), *options.service]
        service = stack.enter_context(started(command, **SERVICE_ENVIRONMENT))
        sizes = [str(options.steps_per_second / options.runs), str(options.sequences)]
        recorders = [
            stack.enter_context(
                started([sys.executable, str(FOLDER / "recording.py"), str(home), f"soak-{number}", *sizes])
            )
            for number in range(options.runs)
        ]
        rows = sample(home, service, recorders, options)
    return int(report(rows, 60 * options.warm_up))


def sample(
    home: Path, service: subprocess.Popen[bytes], recorders: list[subprocess.Popen[bytes]], options: argparse.Namespace
) -> list[dict[str, float]]:
    """What was measured, also written to the CSV as it comes."""
    begun, rows = time.monotonic(), []
    with processes.connected(home) as reader, options.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["seconds", *COLUMNS], restval="", extrasaction="ignore")
        writer.writeheader()
        while (seconds := time.monotonic() - begun) < 60 * options.minutes:
            dead = [process.args for process in (service, *recorders) if process.poll() is not None]
            if dead:
                raise SystemExit(f"ended by itself after {seconds:.0f} s: {dead}")
            row = measuring.process(service.pid) | measuring.home(home) | measuring.store(reader)
            row |= {f"recorder_{name}": value for name, value in measuring.process(recorders[0].pid).items()}
            rows.append(row | {"seconds": seconds, "load": os.getloadavg()[0]})
            writer.writerow(rows[-1])
            file.flush()
            time.sleep(max(0.0, begun + len(rows) * options.every - time.monotonic()))
    return rows


def report(rows: list[dict[str, float]], warm: float) -> bool:
    """Print a line per column; whether one that must not grow has grown, or was never measured."""
    kept = [row for row in rows if row["seconds"] >= warm]
    third, wrong = max(1, len(kept) // 3), False
    for name, slack in COLUMNS.items():
        values = np.array([row.get(name, np.nan) for row in kept])
        known = [part[~np.isnan(part)] for part in (values[:third], values[-third:])]
        if not all(map(len, known)):
            print(f"{name:18} not measured")
            wrong = wrong or slack is not None
            continue
        first, last = map(float, map(np.median, known))
        grows = slack is not None and last > 1.1 * first + slack
        print(f"{name:18} {first:12,.1f} {last:12,.1f}{'  GROWS' if grows else ''}")
        wrong = wrong or grows
    return wrong


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end, and then killed, when the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        yield process
    finally:
        processes.end(process)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--steps-per-second", type=float, default=20.0, help="of all runs together")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--warm-up", type=float, default=5.0, help="minutes that are left out")
    parser.add_argument("--home", help="a folder to record to, kept")
    parser.add_argument("--csv", type=Path, default=Path("soak.csv"))
    parser.add_argument("service", nargs="*", help="after --: further arguments of the service")
    options = parser.parse_args()
    options.warm_up = min(options.warm_up, options.minutes / 3)
    return options


if __name__ == "__main__":
    sys.exit(main())
