"""A page that stays open during the soak: reads through the service what the dashboard reads, at the dashboard's pace.

python tests/soak/looking.py HOME
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from logprobe.app.dashboard import data
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.analysis import slices
from logprobe.monitor.reader import FlightReader, connect

WINDOW = 200  # steps: what the page Mismatch shows by default is about as much


class Page:
    """The overview once a second; every 15 seconds one look at another page."""

    def __init__(self, home: str) -> None:
        self._home = home
        os.environ["LOGPROBE_HOME"] = home
        self._looks = 0

    def snapshot(self) -> None:
        runs = list((data.look().runs or {}).values())
        for run in runs:
            data.frame_of(run)
            data.diagnosis_of(run)
            data.events_of(run)
        self._looks += 1
        if self._looks % 15 == 0 and runs:
            run = runs[self._looks // 15 % len(runs)]
            with connect(self._home) as reader:
                views = self._views(reader, run.name, run.last_step or 0)
                views[self._looks // 15 % len(views)]()

    def _views(self, reader: FlightReader, run: str, last: int) -> list[Callable[[], object]]:
        steps = (max(0, last - WINDOW), last)
        return [
            lambda: slices.by(reader, run, "weight_lag", steps=steps, metrics=["backend.k3_kl"]),
            lambda: reader.read("app_data_runs"),
            lambda: reader.read("app_data_kept"),
            lambda: reader.read("app_tokens_steps", run=run, pair="backend"),
            lambda: reader.read("slice_worst_sequences", run=run, first=steps[0], last=last, count=10, pair="backend", sample=None),
            lambda: reader.read("app_weights_versions", run=run, first=steps[0], last=last),
        ]  # fmt: skip


def main(home: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    page = Page(home)
    while not ended.wait(1.0):
        begun = time.monotonic()
        try:
            page.snapshot()
        except LogprobeError as error:  # counted by whoever reads the log of the soak
            print(f"{time.time():.0f} {time.monotonic() - begun:.1f} s: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
