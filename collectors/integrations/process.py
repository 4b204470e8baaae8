"""The recorder of a process that a framework started: made when there is something to record, and at most once."""

from __future__ import annotations

import os
import threading

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.health import LOGGER, Guard, Health
from logprobe.collectors.recorder.recorder import Recorder


class Process:
    """At most one recorder for what one adapter sees in this process.

    Adapters that wrap classes exist before anything is to be recorded, in processes that never record. Where a recorder cannot be
    made, as without ``LOGPROBE_HOME``, there is none, and the log says so once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._health = Health()
        self._tried = False
        self.recorder: Recorder | None = None

    def start(self, run: str | None = None, rank: int | None = None, component: str = "trainer") -> Recorder | None:
        """The recorder, made by the first call; `run` counts where ``LOGPROBE_RUN`` is not set."""
        with self._lock:
            if not self._tried:
                self._tried = True
                self.recorder = self._made(run, rank, component)
        return self.recorder

    def _made(self, run: str | None, rank: int | None, component: str) -> Recorder | None:
        try:
            return Recorder(run=None if os.environ.get("LOGPROBE_RUN") else run, rank=rank, component=component)
        except ConfigurationError as error:
            LOGGER.warning("%s: nothing is recorded: %s", self._name, error)
            return None

    def guard(self, what: str) -> Guard:
        """A context whose errors are counted, in the recorder where there is one."""
        return Guard(self._health, what) if self.recorder is None else self.recorder.guard(what)
