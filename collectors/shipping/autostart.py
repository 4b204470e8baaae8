"""Start of a shipper for the collectors of a node that record for a bucket.

A recorder's thread calls this module, never the host's. The first collector starts the shipper in a separate session,
so that it survives a crash of the trainer. If the shipper dies, any other collector starts it again. The shipper ends
when no collector is left and no segment waits.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from logprobe.collectors import locks
from logprobe.collectors.addresses import address_of
from logprobe.collectors.health import Health
from logprobe.collectors.locks import FileLock

LOG: Final = "shipper.log"
_LOOK_SECONDS: Final = 10.0
_LONGEST_PAUSE: Final = 600.0
_LOG_BYTES: Final = 1 << 20
_TAIL: Final = 400
_LEFT: Final[list[subprocess.Popen[bytes]]] = []  # shippers that may outlive the recorder that started them


@atexit.register
def _disown() -> None:
    """Disown the processes that outlive this one, to suppress Python's warning."""
    for process in _LEFT:
        if process.poll() is None:
            process.returncode = 0


class ShipperAutostart:
    """Starter of the shipper of one recorder's folder, used by one thread. It is inactive without a bucket."""

    def __init__(self, home: Path, health: Health) -> None:
        """Set up the starter without file access."""
        self._address = address_of(home)
        self._home = home
        self._health = health
        self._collectors = FileLock(home / locks.COLLECTORS)
        self._shipper = FileLock(home / locks.SHIPPER)
        self._present = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = _LOOK_SECONDS
        self._next = 0.0

    def check(self) -> None:
        """Start the shipper unless one runs. Failures become health records. Calls between two checks cost nothing."""
        if self._address is None or time.monotonic() < self._next:
            return
        try:
            self._present = self._present or self._collectors.take(shared=True)
            if not self._present:  # a shipper is about to end, and must have ended before another begins
                return
            self._next = time.monotonic() + self._pause
            if not self._shipper.held_elsewhere and not self._under_way:
                self._start()
        except OSError as error:
            self._next = time.monotonic() + self._pause
            self._health.report("shipper_not_started", f"the shipper could not be started: {error}", severity="error")

    def leave(self) -> None:
        """Release this collector's lock. The shipper may end once no segment waits."""
        self._collectors.release()
        self._present = False
        if self._process is not None:
            _LEFT.append(self._process)
            self._process = None

    @property
    def _under_way(self) -> bool:
        """True if the last started shipper still runs.

        On a busy machine it starts and ends slowly, and meanwhile does not hold the lock.
        """
        return self._process is not None and self._process.poll() is None

    def _start(self) -> None:
        if self._process is not None and self._process.poll() not in {None, 0}:
            words = f"the shipper ended: {self._last_words()}; it is started again"
            self._health.report("shipper_not_started", words, severity="error")
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        _LEFT[:] = [process for process in _LEFT if process.poll() is None]  # no zombies in a host that lives on
        command = [sys.executable, "-P", "-m", "logprobe.collectors.shipping", str(self._address)]
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
