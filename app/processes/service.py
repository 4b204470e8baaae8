"""The process of the monitor service, with all of its parts, on one data directory.

    python -m logprobe.app.processes.service --home DIR [--page URL] [--bucket ADDRESS]

`logprobe up` starts the process. On SIGTERM and SIGINT, the service finishes the current batch, writes the state of
its jobs and closes the store. The section `server` of the settings has its retention limits and its address.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter

from logprobe.app.pandas_guard import without_pandas
from logprobe.monitor.store.budgets import GIB, KEEP_GIB, KEEP_STORE_GIB

if __name__ == "__main__":
    without_pandas()  # 0.4 s of the start, and 29 MB as long as it runs, for nothing

from logprobe.alerts.controller.job import controller_part
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
from logprobe.monitor.settings import settings_file
from logprobe.monitor.shipped import part as shipped_part
from logprobe.monitor.store.freezing import StoreBudget
from logprobe.monitor.store.retention import RetentionPolicy

SECTION: Final = "server"
_Amount: TypeAlias = Annotated[float, Field(ge=0)]
_Port: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=65_535)]


class Server(settings_file.Settings):
    """Section `server` of the settings, read at the start of the service."""

    keep_gib: _Amount = KEEP_GIB
    """raw tokens kept, in GiB; `.inf`: no limit"""
    keep_days: _Amount = math.inf
    """age of raw tokens kept, in days"""
    keep_store_gib: _Amount = KEEP_STORE_GIB
    """size of the store, in GiB"""
    health_port: _Port = 0
    """port of /healthz and /metrics; 0: any free one"""

    def retention(self) -> RetentionPolicy:
        """Return the limits of raw tokens."""
        age = timedelta(days=self.keep_days) if math.isfinite(self.keep_days) else None
        return RetentionPolicy(max_bytes=_bytes(self.keep_gib), max_age=age)


_KIND: Final = TypeAdapter(Server)


def _bytes(gib: float) -> int | None:
    return int(gib * GIB) if math.isfinite(gib) else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
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
            f"{error.filename or arguments.home}: {error.strerror or error}; make the data directory writable, "
            "with room on its disk"
        )
        return 1
    return 0


def service_of(arguments: argparse.Namespace) -> Service:
    """Return the service for the parsed arguments and the settings, without starting it."""
    server = settings_file.read(Path(arguments.home), SECTION, _KIND, Server())
    return Service(
        Home(arguments.home),
        health_port=server.health_port,
        policy=server.retention(),
        budget=StoreBudget(_bytes(server.keep_store_gib)),
        parts=_parts(arguments.page, arguments.bucket),
        prepare=shipped_part.restore(arguments.bucket),
    )


def _parts(page: str | None, bucket: str | None) -> list[PartMaker]:
    """Return the parts besides ingest and metrics. A part may rely on the output of earlier ones."""
    return [
        alerts_part(page=page),
        controller_part,
        delivery_part,
        quarantine_actions.part,
        deleting.part,
        storing.part,
        shipped_part.part(bucket),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m logprobe.app.processes.service", description="The monitor service of one home."
    )
    parser.add_argument("--home", required=True)
    parser.add_argument("--page", metavar="URL", help="URL of the dashboard, for links in alerts")
    parser.add_argument("--bucket", metavar="ADDRESS", help="take what nodes ship to this bucket")
    return parser


if __name__ == "__main__":
    sys.exit(main())
