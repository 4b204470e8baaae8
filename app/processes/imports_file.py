"""The section ``imports`` of a home's settings: folders that other programs write, followed while the home is served.

imports:
  - format: prime-rl             # as in `logprobe import FORMAT`
    path: /outputs/math/token_exports
    run: math                    # the run to add it to
    files: "rank_0.jsonl"        # optional: only files of this name
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, StringConstraints, TypeAdapter

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located, settings_file
from logprobe.monitor.importers.formats import FORMATS

SECTION: Final = "imports"


def _format(name: str) -> str:
    if name not in FORMATS:
        raise ConfigurationError(f"unknown format {name!r}; {located.instead(name, tuple(FORMATS))}")
    return name


_Word: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Import(settings_file.Settings):
    """One entry."""

    format: Annotated[_Word, AfterValidator(_format)]
    path: Path
    run: _Word
    files: _Word | None = None


_KIND: Final = TypeAdapter(tuple[Import, ...])


def load(home: Path) -> tuple[Import, ...]:
    """The entries of a home, whose relative paths start at it. Raises `ConfigurationError` that names file and line."""
    section = settings_file.section(home, SECTION)
    entries = (
        () if section is None or settings_file.is_empty(section) else settings_file.checked(section, SECTION, _KIND)
    )
    for i, entry in enumerate(entries):
        if any((entry.run, entry.format) == (other.run, other.format) for other in entries[:i]):
            raise ConfigurationError(
                f"{located.place_of(section, [i])}: format {entry.format!r} is already imported into run {entry.run!r} by an "
                "entry above; name another run"
            )
    return tuple(entry.model_copy(update={"path": home / entry.path.expanduser()}) for entry in entries)
