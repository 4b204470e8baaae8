"""The findings that a home lives with in many runs: its ``accepted.yaml``.

accepted:
  - match: "prod-*"        # pattern of the run's name
    cause: low_precision
    because: bf16 by choice
    up_to: 3e-3            # K3 that the cause may explain; without it: twice what it explains in the run's first steps
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from logprobe.alerts import located
from logprobe.alerts.located import Table
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits
from logprobe.monitor.diagnosis.causes import BY_NAME

FILE: Final = "accepted.yaml"
_KEYS: Final = ("match", "cause", "because", "up_to")


@dataclass(frozen=True, slots=True)
class Accepted:
    """One entry: which runs, which cause, why, and up to which K3 (None: twice what it explains in the first steps)."""

    match: str
    cause: str
    because: str
    up_to: float | None = None


def of_run(entries: tuple[Accepted, ...], run: str) -> dict[str, Accepted]:
    """What is accepted of `run`, by cause; the last match counts."""
    return {entry.cause: entry for entry in entries if fnmatchcase(run, entry.match)}


def load(home: Path) -> tuple[Accepted, ...]:
    """The entries of a home. Raises `ConfigurationError` that names file and line."""
    file = home / FILE
    text = limits.settings_text(file)
    return () if text is None else parse(text, str(file))


def parse(text: str, file: str) -> tuple[Accepted, ...]:
    """Entries from the text of a file. Raises `ConfigurationError`."""
    table = located.parse(text, file)
    for key in table.values:
        if key != "accepted":
            raise ConfigurationError(
                f"{table.places[key]}: unknown key {key!r}; the entries are listed under `accepted:`"
            )
    return tuple(_entry(entry) for entry in located.items(table, "accepted"))


def _entry(table: Table) -> Accepted:
    for key in table.values:
        if key not in _KEYS:
            raise ConfigurationError(f"{table.places[key]}: unknown key {key!r}; {located.instead(key, _KEYS)}")
    match, cause, because = (_word(table, key) for key in ("match", "cause", "because"))
    try:
        return Accepted(match, known_cause(cause), because, limit(table.values.get("up_to")))
    except ConfigurationError as error:
        raise ConfigurationError(f"{table.place}: {error}") from error


def _word(table: Table, key: str) -> str:
    value = table.values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{table.place}: an entry of `accepted` needs `{key}`, as text; it is {value!r}")
    return value.strip()


def known_cause(name: str) -> str:
    """`name`, where the diagnosis knows such a cause. Raises `ConfigurationError`."""
    if name not in BY_NAME:
        raise ConfigurationError(f"unknown cause {name!r}; {located.instead(name, tuple(BY_NAME))}")
    return name


def limit(value: Any) -> float | None:
    """K3 as a number, which YAML may have read as text (3e-3 has no point). Raises `ConfigurationError`."""
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool | Mapping) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigurationError(f"`up_to`: {value!r} is not a K3 in nats; write a number above 0, such as 3e-3")
    return number
