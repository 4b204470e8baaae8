"""YAML of packaged tables and users' settings, with limits. Aliases can expand 258 bytes to millions of values."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import accumulate
from typing import Any, Final

import yaml

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import limits

_DEEP: Final = "nested too deeply"
_DEEPEST: Final = 100  # open brackets; the time of the parser grows with their square, hours for those of 256 KiB
_OURS: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml where there is one: eight times as fast


def packaged(package: str, name: str) -> Any:
    """Return the data of a YAML file in a package of logprobe."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_OURS)  # noqa: S506 - a safe loader, either of them


def composed(text: str, file: str) -> yaml.Node | None:
    """Return the single document of `text` as nodes, or None for an empty text.

    Raises:
        ConfigurationError: the text is too large, has too many values, or is nested too deeply.
        yaml.YAMLError: the text is invalid YAML.
    """
    if len(text) > limits.SETTINGS.value:
        raise limits.SETTINGS.exceeded(f"{file} has {len(text):,} characters")
    if _open(text) > _DEEPEST:
        raise ConfigurationError(f"{file}: {_DEEP}")
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        values = 0 if node is None else _values(node, {})
    except RecursionError:
        raise ConfigurationError(f"{file}: {_DEEP}") from None
    if values > limits.SETTINGS_VALUES.value:
        raise limits.SETTINGS_VALUES.exceeded(f"{file} has {values:,} values after expanding aliases")
    return node


def _open(text: str) -> int:
    """Return the largest number of brackets open at one place. Brackets in strings count."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    return max(accumulate(steps, lambda count, step: max(0, count + step)), default=0)


def plain(text: str, file: str) -> Any:
    """Return the data of `text`, as `yaml.safe_load` does. Raises the errors of `composed`."""
    node = composed(text, file)
    return None if node is None else yaml.SafeLoader("").construct_document(node)


def _values(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Return the number of values of a node with expanded aliases. Each node is visited once."""
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
