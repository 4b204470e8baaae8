"""A recording with the monitor service at work: what the trainer writes is relayed to it, what it decides reaches the trainer.

The recording's own spool stays as it is, for the export. Finished segments are copied to the spool of a second home, as a relay
between machines would; a service watches that one, and the trainer's `CorrectionSwitch` asks it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.spool.segments import is_temporary, spool_dir
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.reader import open_reader

RELAY_SECONDS: Final = 0.2
START_SECONDS: Final = 120.0
POLICY: Final = "correction: {mode: armed}\n"


@dataclass(frozen=True)
class Control:
    """The monitored home, and the trainer's switch for it."""

    home: Path
    switch: CorrectionSwitch

    def account(self, run: str) -> dict[str, Any]:
        """What the service did: the controller's audit and the alerts. After the end, straight from the store."""
        with open_reader(self.home) as reader:
            found = reader.read("controller_actions", run=run).to_pylist()
            notifications = reader.query(
                "SELECT document FROM notifications WHERE run = $run ORDER BY number", {"run": run}
            ).to_pylist()
        actions = [{**row, "time": row["time"].isoformat(), "details": json.loads(row["details"])} for row in found]
        return {"actions": actions, "notifications": [json.loads(row["document"]) for row in notifications]}


@contextmanager
def controlled(recording: Path, monitored: Path, run: str) -> Iterator[Control]:
    """A service on `monitored` that sees what is recorded in `recording`; ended, with everything ingested, after the block."""
    monitored.mkdir(parents=True, exist_ok=True)
    (monitored / "logprobe.yaml").write_text(POLICY)
    service = subprocess.Popen([sys.executable, "-m", "logprobe.app.processes.service", "--home", str(monitored)])
    relay = Relay(recording, monitored)
    try:
        _await((monitored / "service.json").exists, service)
        relay.start()
        with CorrectionSwitch(monitored, run, poll_seconds=RELAY_SECONDS) as switch:
            yield Control(monitored, switch)
        relay.stop()
        with open_reader(monitored) as reader:
            reader.ingest()
            _await(lambda: _settled(reader.status()), service)
    finally:
        relay.stop()
        service.terminate()
        service.wait(60)


class Relay:
    """Copies finished segments from one spool to another, each once."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = spool_dir(source), spool_dir(target)
        self._done: set[Path] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay")

    def start(self) -> None:
        """Begins, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Copies what is left and ends."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(RELAY_SECONDS):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        for path in sorted(self._source.glob("*/*/*")):
            if path in self._done or is_temporary(path):
                continue
            target = self._target / path.relative_to(self._source)
            target.parent.mkdir(parents=True, exist_ok=True)
            arriving = target.with_name(f".relay-{os.getpid()}-{target.name}")
            shutil.copyfile(path, arriving)
            arriving.replace(target)
            self._done.add(path)


def _settled(status: dict[str, Any]) -> bool:
    return not status["backlog"]["segments"]


def _await(condition: Callable[[], bool], service: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if service.poll() is not None:
            raise LogprobeError(f"the monitor service ended with code {service.returncode}")
        if time.monotonic() > deadline:
            raise LogprobeError("the monitor service took too long")
        time.sleep(RELAY_SECONDS)
