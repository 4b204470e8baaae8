"""Keeps a relay running beside the collectors of a node, where ``LOGPROBE_SERVICE`` names a service.

Called by a recorder's thread, never by the host's. The first collector of a home starts the relay, in its own session;
any other one starts it again should it die. It ends by itself when no collector is left and the spool is empty.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from logprobe.collectors import locks
from logprobe.collectors.health import Health
from logprobe.collectors.locks import FileLock
from logprobe.collectors.relay.arguments import SERVICE_VARIABLE

LOG: Final = "relay.log"
_LOOK_SECONDS: Final = 10.0
_LONGEST_PAUSE: Final = 600.0
_LOG_BYTES: Final = 1 << 20
_TAIL: Final = 400
_LEFT: Final[list[subprocess.Popen[bytes]]] = []  # relays that may outlive the recorder that started them


@atexit.register
def _disown() -> None:
    """They outlive this process on purpose; Python would warn of it."""
    for process in _LEFT:
        if process.poll() is None:
            process.returncode = 0


class RelayAutostart:
    """Of one recorder. Used by one thread; does nothing where no service is named."""

    def __init__(self, home: Path, health: Health, environment: Mapping[str, str] = os.environ) -> None:
        """Touches nothing."""
        self._wanted = bool(environment.get(SERVICE_VARIABLE))
        self._home = home
        self._health = health
        self._collectors = FileLock(home / locks.COLLECTORS)
        self._relay = FileLock(home / locks.RELAY)
        self._present = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = _LOOK_SECONDS
        self._next = 0.0

    def check(self) -> None:
        """Starts the relay unless one runs. Costs nothing between two looks; what fails is a health record."""
        if not self._wanted or time.monotonic() < self._next:
            return
        try:
            self._present = self._present or self._collectors.take(shared=True)
            if not self._present:  # a relay is about to end, and must have ended before another begins
                return
            self._next = time.monotonic() + self._pause
            if not self._relay.held_elsewhere and not self._under_way:
                self._start()
        except OSError as error:
            self._next = time.monotonic() + self._pause
            self._health.report("relay_not_started", f"the relay could not be started: {error}", severity="error")

    def leave(self) -> None:
        """This collector is at its end; the relay may be, too, once the spool is empty."""
        self._collectors.release()
        self._present = False
        if self._process is not None:
            _LEFT.append(self._process)
            self._process = None

    @property
    def _under_way(self) -> bool:
        """Whether the relay that was started last runs without the lock: on a busy machine it takes its time to begin,
        and to end."""
        return self._process is not None and self._process.poll() is None

    def _start(self) -> None:
        if self._process is not None and self._process.poll() not in {None, 0}:
            words = f"the relay ended: {self._last_words()}; it is started again"
            self._health.report("relay_not_started", words, severity="error")
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        _LEFT[:] = [process for process in _LEFT if process.poll() is None]  # no zombies in a host that lives on
        command = [
            sys.executable,
            "-P",
            "-m",
            "logprobe.collectors.relay",
            "--home",
            str(self._home),
            "--with-collectors",
        ]
        log = self._home / LOG
        with log.open("ab") as output:
            if output.tell() > _LOG_BYTES:
                output.truncate(0)
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def _last_words(self) -> str:
        try:
            lines = (self._home / LOG).read_text(errors="replace").splitlines()
        except OSError as error:
            return f"exit code {self._process.returncode if self._process else None}, {error}"
        return lines[-1][-_TAIL:] if lines else "without a word"
