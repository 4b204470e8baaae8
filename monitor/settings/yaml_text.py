"""YAML of our tables and of users' settings, with limits, since aliases can make 258 bytes mean millions of values."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

import yaml

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import limits

_DEEP: Final = "nested too deeply"
_OURS: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml where there is one: eight times as fast


def packaged(package: str, name: str) -> Any:
    """Return the meaning of a YAML file that comes with a package of ours."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_OURS)  # noqa: S506 - a safe loader, either of them


def composed(text: str, file: str) -> yaml.Node | None:
    """Return the one document of `text` as nodes, or None if it is empty.

    Raises:
        ConfigurationError: it is too large, has too many values, or is nested too deeply.
        yaml.YAMLError: it is invalid YAML.
    """
    if len(text) > limits.SETTINGS.value:
        raise limits.SETTINGS.exceeded(f"{file} has {len(text):,} characters")
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        values = 0 if node is None else _values(node, {})
    except RecursionError:
        raise ConfigurationError(f"{file}: {_DEEP}") from None
    if values > limits.SETTINGS_VALUES.value:
        raise limits.SETTINGS_VALUES.exceeded(f"{file} has {values:,} values after expanding aliases")
    return node


def plain(text: str, file: str) -> Any:
    """Return the meaning of `text`, as `yaml.safe_load` has it. Raises as `composed`."""
    node = composed(text, file)
    return None if node is None else yaml.SafeLoader("").construct_document(node)


def _values(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Return the number of values that a node means; each node is looked at once, however many aliases name it."""
    if id(node) in counts:
        counted = counts[id(node)]
        if counted is None:  # it is part of itself
            raise RecursionError
        return counted
    counts[id(node)] = None
    count = 1 + sum(_values(child, counts) for child in _children(node))
    counts[id(node)] = count
    return count


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
