"""Settings of the data directory, reloaded by the service after each change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.files import stamp_of
from logprobe.monitor.settings import settings_file

T = TypeVar("T")

LOGGER: Final = logging.getLogger("logprobe.alerts")


class Reloaded(Generic[T]):
    """Latest valid content of a settings section. Safe from any thread."""

    def __init__(self, home: Path, section: str, read: Callable[[], T]) -> None:
        """Read the content. Raise the errors of `read`, since no earlier content exists."""
        self._section = section
        self._file = home / settings_file.FILE
        self._read = read
        self._lock = threading.Lock()
        self._mark = self._look()  # before reading: what changes in between is read again
        self._value = read()
        self.problem: str | None = None

    def current(self) -> T:
        """Return the latest valid content, at the cost of one `stat`. Report an invalid file only in `problem`."""
        with self._lock:
            mark = self._look()
            if mark != self._mark:
                self._mark = mark
                self._take_over()
            return self._value

    def report(self) -> dict[str, str]:
        """Return a job's progress with the reason why the file is not in effect, or {} if the file is in effect."""
        return {} if self.problem is None else {"problem": self.problem}

    def _look(self) -> object:
        """Return a value that changes whenever the file is written, replaced, added or removed."""
        try:
            return stamp_of(self._file)
        except LogprobeError:
            return None  # reading it will say why

    def _take_over(self) -> None:
        try:
            self._value = self._read()
        except LogprobeError as error:
            self.problem = f"{str(error).partition(chr(10))[0]}; the previous version stays active"
            LOGGER.error("%s", self.problem)  # noqa: TRY400 - a typing error: the trace says nothing
        else:
            self.problem = None
            LOGGER.info("the settings of `%s` were reloaded", self._section)
