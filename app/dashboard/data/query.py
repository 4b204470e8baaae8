"""One query that somebody typed: under way in a thread of its own, so that the page goes on, then done or refused."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from logprobe.collectors.errors import LogprobeError


class RunningQuery:
    """A query from the moment somebody pressed Run. Safe to look at from any thread.

    Attributes:
        sql: as it was typed.
        label: by which the service can be told to stop it.
        table: what came back, None before; its schema says whether there is more, see `Reader.query`.
        refusal: why nothing came back, one line; "": nothing was refused.
        seconds: how long it took; None: it has not ended.
    """

    def __init__(self, sql: str, ask: Callable[[str, str], pa.Table]) -> None:
        """Begins at once. `ask(sql, label)` returns the rows, or raises `LogprobeError`."""
        self.sql = sql
        self.label = secrets.token_hex(8)
        self.table: pa.Table | None = None
        self.refusal = ""
        self.seconds: float | None = None
        self._ask = ask
        self._begun = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="logprobe-sql", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return not self._ended.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since it began, or for which it ran."""
        return time.monotonic() - self._begun if self.seconds is None else self.seconds

    def wait(self, seconds: float) -> bool:
        """Waits for its end, at most so long; whether it has ended."""
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            self.table = self._ask(self.sql, self.label)
        except LogprobeError as error:
            self.refusal = str(error).partition("\n")[0]
        except BaseException as error:
            self.refusal = f"it failed ({type(error).__name__}); the output of `logprobe up` has the details"
            raise
        finally:
            self.seconds = time.monotonic() - self._begun
            self._ended.set()
