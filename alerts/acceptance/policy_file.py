"""The findings that a home lives with in many runs: the section ``accepted`` of its settings.

accepted:
  - match: "prod-*"        # pattern of the run's name
    cause: low_precision
    because: bf16 by choice
    up_to: 3e-3            # K3 that the cause may explain; without it: twice what it explains in the run's first steps
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator, StringConstraints, TypeAdapter

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located, settings_file
from logprobe.monitor.diagnosis.causes import BY_NAME

SECTION: Final = "accepted"


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


_Word: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Accepted(settings_file.Settings):
    """One entry: which runs, which cause, why, and up to which K3 (None: twice what it explains in the first steps)."""

    match: _Word
    cause: Annotated[_Word, AfterValidator(known_cause)]
    because: _Word
    up_to: Annotated[float | None, BeforeValidator(limit)] = None


_KIND: Final = TypeAdapter(tuple[Accepted, ...])


def of_run(entries: tuple[Accepted, ...], run: str) -> dict[str, Accepted]:
    """What is accepted of `run`, by cause; the last match counts."""
    return {entry.cause: entry for entry in entries if fnmatchcase(run, entry.match)}


def load(home: Path) -> tuple[Accepted, ...]:
    """The entries of a home. Raises `ConfigurationError` that names file and line."""
    return settings_file.read(home, SECTION, _KIND, ())
