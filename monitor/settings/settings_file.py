"""Settings of a data directory, the sections of its ``logprobe.yaml``. Errors name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import limits, located
from logprobe.monitor.settings.located import Entries, Table

FILE: Final = "logprobe.yaml"
SECTIONS: Final = ("alerts", "channels", "correction", "loggers", "server", "tokenizers")

T = TypeVar("T")
Section: TypeAlias = Table | Entries


class Settings(BaseModel):
    """Mapping of a section. An unknown key is an error that suggests a known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                meant = located.instead(str(key), tuple(cls.model_fields))
                raise PydanticCustomError("unknown_key", "unknown key; {meant}", {"key": key, "meant": meant})
        return values


def section(home: Path, name: str) -> Section | None:
    """Return a section with its places, None for a missing section, or an empty table for an empty one.

    Raises `ConfigurationError` with file and line.
    """
    table = _table(home / FILE)
    _refuse_unknown(table)
    return given(table, name)


def read(home: Path, name: str, kind: TypeAdapter[T], default: T) -> T:
    """Return a section as `kind`, or `default` for an empty one. Raises `ConfigurationError` with file and line."""
    value = section(home, name)
    return default if is_empty(value) else checked(value, name, kind)


def checked(value: Any, name: str, kind: TypeAdapter[T], where: str = "") -> T:
    """Return the declaration of a section called `name`. Raises `ConfigurationError` with every mistake and its place.

    `value`: data with places, or plain data at the place `where`.
    """
    try:
        return kind.validate_python(located.plain(value))
    except ValidationError as error:
        mistakes = [_mistake(value, name, dict(mistake), where) for mistake in error.errors(include_url=False)]
        raise ConfigurationError("; ".join(mistakes)) from None  # pydantic's own words quote the values


def is_empty(value: Section | None) -> bool:
    """Return whether a section is empty."""
    return value is None or (isinstance(value, Table) and not value.values)


def _mistake(value: Any, name: str, error: Mapping[str, Any], where: str) -> str:
    path = [*error["loc"], *([error["ctx"]["key"]] if error["type"] == "unknown_key" else [])]
    # Pydantic's path also names the kind that it chose among several, which no key of the file does.
    keys = [name, *(str(key) for key in located.keys_on(value, path))] if not where else [str(key) for key in path]
    place = where or str(located.place_of(value, path))
    return f"{place}: {'.'.join(keys)}: {error['msg'].removeprefix('Value error, ')}"


def _table(file: Path) -> Table:
    content = limits.settings_text(file)
    return located.empty(str(file)) if content is None else located.parse(content, str(file))


def given(table: Table, name: str) -> Section | None:
    """Return a section of a whole file, as `section` does. Raises `ConfigurationError` for a scalar."""
    if name not in table.values:
        return None
    value, place = table.values[name], table.places.get(name, table.place)
    if value is None:
        return Table(place)
    if not isinstance(value, Table | Entries):
        raise ConfigurationError(f"{place}: `{name}` is {value!r}; write a mapping or a list")
    return value


def _refuse_unknown(table: Table) -> None:
    for key in table.values:
        if key not in SECTIONS:
            raise ConfigurationError(f"{table.places[key]}: unknown key {key!r}; {located.instead(key, SECTIONS)}")
