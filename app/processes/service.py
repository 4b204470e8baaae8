"""The process of the monitor service: all of its parts on one home.

    python -m logprobe.app.processes.service --home DIR [--bind ADDRESS] [--port PORT] [--health-port PORT] …

`logprobe up` starts it. It stops cleanly on SIGTERM and SIGINT: the batch in hand is finished, the account of the jobs
written, the store closed.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from logprobe.monitor.budgets import GIB
from logprobe.monitor.pandas_guard import without_pandas

if __name__ == "__main__":
    without_pandas()  # 0.4 s of the start, and 29 MB as long as it runs, for nothing

from logprobe.alerts.controller.job import controller_part
from logprobe.alerts.rules.acceptance import acceptance_part
from logprobe.alerts.rules.watch import alerts_part
from logprobe.alerts.sending.actions import delivery_part
from logprobe.app.processes.supervisor import DAMAGED
from logprobe.collectors.errors import LogprobeError, StoreDamagedError
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.plain_text import complain
from logprobe.monitor.home import Home, apply_umask
from logprobe.monitor.live import quarantine_actions
from logprobe.monitor.proof import storing
from logprobe.monitor.service import deleting, heap
from logprobe.monitor.service.jobs import PartMaker
from logprobe.monitor.service.service import Service
from logprobe.monitor.shipped import part as shipped_part
from logprobe.monitor.store.freezing import StoreBudget
from logprobe.monitor.store.retention import RetentionPolicy


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    heap.settle()
    arguments = _parser().parse_args(argv)
    log_to_stderr()
    # Every tick is logged at INFO, a tick that finds its job still running at WARNING: neither is news here.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    try:
        apply_umask()
        service = service_of(arguments)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.shutdown())
        service.run()
    except LogprobeError as error:
        complain(str(error))
        return DAMAGED if isinstance(error, StoreDamagedError) else 1
    except OSError as error:  # such as a full disk
        complain(
            f"{error.filename or arguments.home}: {error.strerror or error}; a service writes into its home when it "
            "starts: "
            "make it writable, with room on its disk"
        )
        return 1
    return 0


def service_of(arguments: argparse.Namespace) -> Service:
    """The service that the parsed arguments ask for; it does not run yet."""
    return Service(
        Home(arguments.home),
        host=arguments.bind,
        port=arguments.port,
        health_port=arguments.health_port,
        policy=_policy(arguments.keep_gib, arguments.keep_days),
        budget=_budget(arguments.keep_store_gib),
        parts=_parts(arguments.page, arguments.bucket),
        prepare=shipped_part.restore(arguments.bucket),
    )


def _parts(page: str | None, bucket: str | None) -> list[PartMaker]:
    """What the service does besides ingest and metrics; a part may rely on what those before it wrote."""
    return [
        acceptance_part,
        alerts_part(page=page),
        controller_part,
        delivery_part,
        quarantine_actions.part,
        deleting.part,
        storing.part,
        shipped_part.part(bucket),
    ]


def _policy(gib: float | None, days: float | None) -> RetentionPolicy:
    policy = RetentionPolicy()
    if gib is not None:
        policy = replace(policy, max_bytes=int(gib * GIB) if math.isfinite(gib) else None)
    if days is not None:
        policy = replace(policy, max_age=timedelta(days=days) if math.isfinite(days) else None)
    return policy


def _budget(gib: float | None) -> StoreBudget:
    if gib is None:
        return StoreBudget()
    return StoreBudget(int(gib * GIB) if math.isfinite(gib) else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m logprobe.app.processes.service", description="The monitor service of one home."
    )
    parser.add_argument("--home", required=True)
    parser.add_argument(
        "--bind", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--health-port", type=int, default=0, help="port of /healthz (default: any free one)")
    parser.add_argument("--page", metavar="URL", help="URL of the dashboard, for links in alerts")
    parser.add_argument("--keep-gib", type=float, help="raw tokens kept, in GiB; inf: no limit")
    parser.add_argument("--keep-days", type=float, help="age of raw tokens kept, in days")
    parser.add_argument("--bucket", metavar="ADDRESS", help="take what nodes ship to this bucket")
    parser.add_argument("--keep-store-gib", type=float, help="size of the store, in GiB; inf: no limit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
