"""The soak: a real Recorder process per run, the real service and an open page for hours, and slopes of what they take at the end.

    make campaign NAME=soak ARGS="--minutes 10"

Samples go to a CSV every few seconds; the report is printed, and written beside it. Exit code 1 when memory, threads, open files, or
what a budget bounds still grow.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "support")]

import measuring  # noqa: E402
import processes  # noqa: E402
from report import write_report  # noqa: E402

from logprobe.app.processes.stack import SERVICE_ENVIRONMENT  # noqa: E402

# What is written of each sample, in this order.
COLUMNS = (
    "seconds", "rss_mib", "pss_mib", "anonymous_mib", "arenas", "threads", "fds", "cpu_s", "duckdb_mib", "spilled_mib", "store_mib",
    "used_mib", "wal_mib", "raw_mib", "spool_mib", "quarantine_mib", "files", "steps", "sequences", "statistics_rows", "load",
    "recorder_rss_mib", "recorder_threads", "recorder_fds", "restarts",
)  # fmt: skip


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # so that nothing it started outlives it
    if not options.report_only:
        soak(options)
    grown = write_report(options)
    print(options.report.read_text())
    return int(bool(grown))


def soak(options) -> None:
    with ExitStack() as stack:
        home = Path(options.home or stack.enter_context(tempfile.TemporaryDirectory(prefix="logprobe-soak-")))
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        service = stack.enter_context(
            started(service_command(home, options), options.log.open("w"), options.nice, **SERVICE_ENVIRONMENT)
        )
        recorders = [
            stack.enter_context(started(recorder_command(home, number, options), subprocess.DEVNULL, options.nice))
            for number in range(options.runs)
        ]
        if not options.no_page:
            page = [sys.executable, str(FOLDER / "looking.py"), str(home)]
            stack.enter_context(started(page, options.log.with_suffix(".page.log").open("w"), options.nice))
        sample(home, service, recorders, options)


def sample(home: Path, service: subprocess.Popen[bytes], recorders: list[subprocess.Popen[bytes]], options) -> None:
    begun = time.monotonic()
    with processes.connected(home) as reader, options.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        number = 0
        while (seconds := time.monotonic() - begun) < 60 * options.minutes:
            dead = [p.args for p in (service, *recorders) if p.poll() is not None]
            if dead:
                raise SystemExit(f"ended by itself after {seconds:.0f} s: {dead}; see {options.log}")
            row = measuring.process(service.pid) | measuring.home(home) | measuring.store(reader)
            row |= {f"recorder_{name}": value for name, value in measuring.process(recorders[0].pid).items()}
            row |= {"seconds": seconds, "load": os.getloadavg()[0]}
            writer.writerow({name: f"{value:.3f}" for name, value in row.items() if name in COLUMNS})
            file.flush()
            number += 1
            time.sleep(max(0.0, begun + number * options.every - time.monotonic()))


@contextmanager
def started(command: list[str], log, nice: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end, and then killed, when the block ends."""
    settings = {**os.environ, **environment}
    process = subprocess.Popen(["nice", "-n", str(nice), *command], stdout=log, stderr=log, env=settings)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def service_command(home: Path, options) -> list[str]:
    program = ["-m", "logprobe.app.processes.service"] if options.program is None else [options.program]
    return [sys.executable, *program, "--home", str(home), *options.service]


def recorder_command(home: Path, number: int, options) -> list[str]:
    name = f"soak-{number}"
    sizes = [str(options.steps_per_second / options.runs), str(options.sequences), str(options.tokens)]
    return [sys.executable, str(FOLDER / "recording.py"), str(home), name, *sizes]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (default: %(default)s)")
    parser.add_argument(
        "--steps-per-second", type=float, default=20.0, help="of all runs together (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=1, help="runs at once (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=8, help="of a step (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of a sequence (default: %(default)s)")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples (default: %(default)s)")
    parser.add_argument(
        "--warm-up", type=float, default=5.0, help="minutes left out of the slopes (default: %(default)s)"
    )
    parser.add_argument("--nice", type=int, default=0, help="of all processes (default: %(default)s)")
    parser.add_argument("--no-page", action="store_true", help="nobody looks")
    parser.add_argument("--home", help="a folder to record to, kept (default: a temporary one)")
    parser.add_argument("--csv", type=Path, default=Path("soak.csv"), help="samples (default: %(default)s)")
    parser.add_argument("--report", type=Path, default=Path("soak.md"), help="slopes (default: %(default)s)")
    parser.add_argument(
        "--report-only", action="store_true", help="slopes of the samples there are, also while a soak runs"
    )
    parser.add_argument("--log", type=Path, default=Path("soak.log"), help="of the service (default: %(default)s)")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("service", nargs="*", help="after --: further arguments of the service, e.g. --bucket=ADDRESS")
    options = parser.parse_args()
    options.warm_up = min(options.warm_up, options.minutes / 3)
    return options


if __name__ == "__main__":
    sys.exit(main())
