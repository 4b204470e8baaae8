"""Arguments of a `Recorder`, validated at the start of a run so that a mistake does not surface at step 900."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.addresses import address_of, checked, default_home, folder_of, is_address
from logprobe.collectors.environment import RECORD, option
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.segments import run_dir

_COMPONENT: Final = re.compile(r"[A-Za-z0-9_]{1,40}")
_NAME_BYTES: Final = 255  # of a directory name on common file systems
_SMALLEST_QUEUE: Final = 1 << 20
_FLUSH_SECONDS: Final = 1.0
_FLUSH_SECONDS_BUCKET: Final = 5.0  # each flush is a put, which costs money


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of a recorder, sufficient to create an equal one in another process.

    `home`: path or bucket address of the data directory.
    """

    home: str
    run: str
    rank: int | None
    replica: str | None
    component: str
    flush_interval: float
    segment_tokens: int
    queue_bytes: int
    raw_fraction: float
    worst_sequences: int

    @property
    def folder(self) -> Path:
        """Local folder of the recordings. Raises `ConfigurationError`."""
        return folder_of(self.home)

    @classmethod
    def resolve(cls, environment: Mapping[str, str] = os.environ, **given: Any) -> Settings:
        """Complete the values from the environment and check all of them.

        Raises:
            ConfigurationError: a value is missing or invalid.
        """
        home = _home(given["home"], environment)
        seconds = _FLUSH_SECONDS_BUCKET if is_address(home) else _FLUSH_SECONDS
        settings = cls(
            **{
                **given,
                "home": home,
                "flush_interval": seconds if given["flush_interval"] is None else given["flush_interval"],
                "run": _run(given["run"], environment),
                "rank": _rank(given["rank"], environment),
                "replica": None if given["replica"] is None else str(given["replica"]),
                "raw_fraction": _raw_fraction(given["raw_fraction"], environment),
            }
        )
        settings._check()
        return settings

    def _check(self) -> None:
        if not isinstance(self.component, str) or not _COMPONENT.fullmatch(self.component):
            raise ConfigurationError(
                f"component={self.component!r} is invalid; use 1 to 40 letters, digits and underscores"
            )
        _require_number("flush_interval", self.flush_interval, above=0, below=3600)
        _require_number("segment_tokens", self.segment_tokens, above=0, below=2**31)
        if type(self.worst_sequences) is not int or self.worst_sequences < 0:
            raise ConfigurationError(f"worst_sequences={self.worst_sequences!r} is invalid; use a whole number ≥ 0")
        _require_number("queue_bytes", self.queue_bytes, above=_SMALLEST_QUEUE - 1, below=2**48)


def _require_number(name: str, value: object, *, above: float, below: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < below:
        raise ConfigurationError(f"{name}={value!r} is out of range; use a number above {above} and below {below}")


def _home(given: object, environment: Mapping[str, str]) -> str:
    home = default_home(environment) if given is None or given == "" else given
    if not isinstance(home, str | os.PathLike):
        raise ConfigurationError(f"home={home!r} is invalid; pass a path or the address of a bucket")
    if is_address(home):
        folder_of(str(home), environment)  # what is wrong with it shows now
        return checked(str(home))
    path = folder_of(home, environment)
    with suppress(OSError):  # what cannot be looked at now is the recorder's thread's to report
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"home={str(path)!r} is a file; pass a directory, which is created if missing")
    return address_of(path) or str(path)


def _run(given: object, environment: Mapping[str, str]) -> str:
    run = given if given is not None else environment.get("LOGPROBE_RUN")
    if run is None or run == "":
        raise ConfigurationError("no run: pass Recorder(run=...) or set LOGPROBE_RUN to a name for this training run")
    return valid_run(run)


def valid_run(run: object) -> str:
    """Return `run` if it is a valid name of a run. Raise `ConfigurationError` otherwise."""
    if not isinstance(run, str) or "\0" in run or run.encode(errors="replace").decode() != run:
        raise ConfigurationError(f"run={run!r} is not a string; pass a name for this training run")
    if len(os.fsencode(run_dir(Path("/"), run).name)) > _NAME_BYTES:
        raise ConfigurationError(f"run={run[:40]!r}…: too long for a directory name; shorten it")
    return run


def _rank(given: object, environment: Mapping[str, str]) -> int | None:
    rank = given if given is not None else environment.get("RANK") or None
    if rank is None:
        return None
    try:
        number = int(rank)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = -1
    if isinstance(rank, bool) or not 0 <= number < 2**31:
        source = "rank" if given is not None else "environment variable RANK"
        raise ConfigurationError(f"{source}={rank!r} is not a whole number ≥ 0; pass Recorder(rank=...)")
    return int(number)


def _raw_fraction(given: object, environment: Mapping[str, str]) -> float:
    value = given if given is not None else option("raw", environment) or 1.0
    source = "raw_fraction" if given is not None else f"option raw of {RECORD}"
    try:
        fraction = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        fraction = -1.0
    if isinstance(value, bool) or not 0 <= fraction <= 1:
        raise ConfigurationError(f"{source}={value!r} is out of range; use 0 (statistics only) to 1 (all raw tokens)")
    return fraction
