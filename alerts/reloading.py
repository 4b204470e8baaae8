"""Settings of the home that the service goes by, read again when one changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Generic, TypeVar

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.files import stamp_of
from logprobe.monitor.settings import settings_file

T = TypeVar("T")

LOGGER: Final = logging.getLogger("logprobe.alerts")


class Reloaded(Generic[T]):
    """Content of a section: valid, and as it stands now; after a change that cannot be used, as it stood before. Safe
    from any thread."""

    def __init__(
        self, home: Path, section: str, read: Callable[[], T], others: Callable[[], Iterable[Path]] = tuple
    ) -> None:
        """Read the content. Raise the errors of `read`, since there is no earlier content. `others`: files read with
        it."""
        self._section = section
        self._files = [home / settings_file.FILE]
        self._others = others
        self._read = read
        self._lock = threading.Lock()
        self._mark = self._look()  # before reading: what changes in between is read again
        self._value = read()
        self.problem: str | None = None

    def current(self) -> T:
        """Return the content now. Looking costs one `stat` per file. Never raises for a bad file: see `problem`."""
        with self._lock:
            mark = self._look()
            if mark != self._mark:
                self._mark = mark
                self._take_over()
            return self._value

    def report(self) -> dict[str, str]:
        """Return a job's progress with the reason why the file is not in effect, or {} if it is."""
        return {} if self.problem is None else {"problem": self.problem}

    def _look(self) -> object:
        """Return another value whenever one of the files was written, replaced, added or removed."""
        try:
            return [(file, stamp_of(file)) for file in (*self._files, *self._others())]
        except LogprobeError:
            return None  # reading them will say why

    def _take_over(self) -> None:
        try:
            self._value = self._read()
        except LogprobeError as error:
            self.problem = f"{str(error).partition(chr(10))[0]}; the previous version stays active"
            LOGGER.error("%s", self.problem)  # noqa: TRY400 - a typing error: the trace says nothing
        else:
            self.problem = None
            LOGGER.info("the settings of `%s` were reloaded", self._section)
