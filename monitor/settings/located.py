"""YAML as plain data with the place of each value, for messages with file and line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

import yaml

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import yaml_text

_DEEPEST: Final = 20  # settings need five


@dataclass(frozen=True, slots=True)
class Place:
    """Line of a file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Table:
    """YAML mapping. `values`: plain data, `Table`s and `Entries`. `places`: place of each key."""

    place: Place
    values: dict[str, object] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def over(self, base: Table) -> Table:
        """Return `base` with the values of this table on top."""
        return Table(self.place, {**base.values, **self.values}, {**base.places, **self.places})


@dataclass(slots=True)
class Entries:
    """YAML sequence."""

    place: Place
    values: list[Any] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


def instead(word: str, choices: Sequence[str]) -> str:
    """Return a suggestion for an unknown word.

    >>> instead("runz", ["run", "cause"]), instead("x", ["run", "cause"])
    ("did you mean 'run'?", 'known are run, cause')
    """
    near = get_close_matches(word, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(choices)}"


def parse(text: str, file: str) -> Table:
    """Return the mapping in `text`, empty for an empty text. Raises `ConfigurationError` with file and line."""
    try:
        node = yaml_text.composed(text, file)
        if node is None:
            return Table(Place(file, 1))
        value = _value(yaml.SafeLoader(""), node, file, 0)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigurationError(f"{file}:{line}: invalid YAML: {error.problem or error.context}") from error
    except ConfigurationError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{file}:1: invalid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, Table):
        raise ConfigurationError(f"{file}:1: expected a mapping, such as `rules:`")
    return value


def plain(value: Any) -> Any:
    """Return the data without places."""
    if isinstance(value, Table):
        return {key: plain(item) for key, item in value.values.items()}
    if isinstance(value, Entries):
        return [plain(item) for item in value.values]
    return value


def place_of(value: Any, path: Iterable[Any]) -> Place:
    """Return the place of the value at `path`, or the last place on the path that exists."""
    place: Place = value.place
    for key in path:
        if _has(value, key):
            place, value = value.places[key], value.values[key]
    return place


def keys_on(value: Any, path: Sequence[Any]) -> Iterator[Any]:
    """Yield the existing keys of `path` and the last one, which may be missing."""
    for i, key in enumerate(path):
        if _has(value, key):
            yield key
            value = value.values[key]
        elif i == len(path) - 1:
            yield key


def _has(value: Any, key: Any) -> bool:
    return key in value.values if isinstance(value, Table) else isinstance(value, Entries)


def _value(loader: yaml.SafeLoader, node: yaml.Node, file: str, depth: int) -> Any:
    place = Place(file, node.start_mark.line + 1)
    if depth > _DEEPEST:
        raise ConfigurationError(f"{place}: nested too deeply; flatten it")
    if isinstance(node, yaml.MappingNode):
        return _table(loader, node, file, depth)
    if isinstance(node, yaml.SequenceNode):
        items = [_value(loader, child, file, depth + 1) for child in node.value]
        return Entries(place, items, [Place(file, child.start_mark.line + 1) for child in node.value])
    return loader.construct_object(node)


def _table(loader: yaml.SafeLoader, node: yaml.MappingNode, file: str, depth: int) -> Table:
    table = Table(Place(file, node.start_mark.line + 1))
    for key_node, value_node in node.value:
        place = Place(file, key_node.start_mark.line + 1)
        # As it is written: `on` and `no` are names here, not truth values.
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key is None:
            raise ConfigurationError(f"{place}: a key is not a word; write one")
        if key in table.values:
            raise ConfigurationError(
                f"{place}: {key!r} appears twice, first in line {table.places[key].line}; remove one"
            )
        table.values[key] = _value(loader, value_node, file, depth + 1)
        table.places[key] = place
    return table


def items(table: Table, key: str) -> list[Table]:
    """Return the tables of the sequence under `key`, or no table for a missing key. Raises `ConfigurationError` for
    another type.
    """
    value = table.values.get(key)
    if value is None:
        return []
    if not isinstance(value, Entries):
        raise ConfigurationError(f"{table.places[key]}: `{key}` must be a list")
    for item, place in zip(value.values, value.places, strict=True):
        if not isinstance(item, Table):
            raise ConfigurationError(f"{place}: an entry of `{key}` must be a mapping, such as `- name: …`")
    return list(value.values)


def empty(file: str) -> Table:
    """Return the table of a missing file."""
    return Table(Place(file, 1))
