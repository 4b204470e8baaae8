"""``imports.yaml`` of a home: folders that other programs write, followed while the home is served.

imports:
  - format: prime-rl             # as in `logprobe import FORMAT`
    path: /outputs/math/token_exports
    run: math                    # the run to add it to
    files: "rank_0.jsonl"        # optional: only files of this name
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logprobe.alerts import located
from logprobe.alerts.located import Table
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits
from logprobe.monitor.importers.formats import FORMATS

FILE: Final = "imports.yaml"
_REQUIRED: Final = ("format", "path", "run")
_KEYS: Final = (*_REQUIRED, "files")


@dataclass(frozen=True, slots=True)
class Import:
    """One entry."""

    format: str
    path: Path
    run: str
    files: str | None = None


def load(home: Path) -> tuple[Import, ...]:
    """The entries of a home; none without a file. Raises `ConfigurationError` that names file and line."""
    file = home / FILE
    text = limits.settings_text(file)
    return () if text is None else parse(text, str(file), home)


def parse(text: str, file: str, home: Path) -> tuple[Import, ...]:
    """Entries from the text of a file; relative paths start at the home. Raises `ConfigurationError`."""
    table = located.parse(text, file)
    for key in table.values:
        if key != "imports":
            raise ConfigurationError(f"{table.places[key]}: unknown key {key!r}; list the folders under `imports:`")
    found: dict[tuple[str, str], Import] = {}
    for entry in located.items(table, "imports"):
        read = _entry(entry, home)
        if (read.run, read.format) in found:
            raise ConfigurationError(
                f"{entry.place}: format {read.format!r} is already imported into run {read.run!r} by an entry above; "
                "name another run"
            )
        found[read.run, read.format] = read
    return tuple(found.values())


def _entry(table: Table, home: Path) -> Import:
    for key in table.values:
        if key not in _KEYS:
            raise ConfigurationError(f"{table.places[key]}: unknown key {key!r}; {located.instead(key, _KEYS)}")
    form, path, run = (_word(table, key) for key in _REQUIRED)
    if form not in FORMATS:
        raise ConfigurationError(
            f"{table.places['format']}: unknown format {form!r}; {located.instead(form, tuple(FORMATS))}"
        )
    files = _word(table, "files") if "files" in table.values else None
    return Import(form, home / Path(path).expanduser(), run, files)


def _word(table: Table, key: str) -> str:
    value = table.values.get(key)
    if not isinstance(value, str) or not value.strip():
        place = table.places.get(key, table.place)
        raise ConfigurationError(f"{place}: an entry of `imports` needs `{key}`, as text; it is {value!r}")
    return value.strip()
