"""Ingests what lies in the spool of a home, a few segments at a time, and kills itself before a statement of a transaction: HOME NUMBER."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from logprobe.monitor.home import Home
from logprobe.monitor.live import ingest
from logprobe.monitor.store.store import Store

AT_A_TIME = 5  # segments


def main(folder: str, number: int) -> None:
    ingest.BATCH_SEGMENTS = AT_A_TIME  # type: ignore[misc]
    execute, calls = Store.execute, itertools.count()

    def dying(store: Store, *arguments: Any, **named: Any) -> None:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        execute(store, *arguments, **named)

    Store.execute = dying  # type: ignore[method-assign]
    with Store.open(Home(Path(folder))) as store:
        ingest.Ingester(store).run_once()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
