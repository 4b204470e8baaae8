"""Changing single entries in the text of a rule file, so that everything else in it stays as someone wrote it. Pure.

An entry is put in, replaced or taken out between the lines of the others; comments elsewhere, and the order, stay. What
the file then means is compared with what it meant before: if more than that entry has changed, nothing is returned.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import yaml

from logprobe.alerts.rules.rule_file import OVERLAY
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located

_KEY: Final = "rules"
_HEADER: Final = (
    "# Written by the rule editor of the dashboard, over the other files; `logprobe alerts check` lists what is in "
    "force.\n"
)
_INDENT: Final = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule as written in a file: lines `first` to `last` (counted from 0), its mapping from column `column` on."""

    name: str
    first: int
    last: int
    column: int
    text: str  # as an editor shows it: without the dash, and without the indentation


@dataclass(frozen=True, slots=True)
class Edited:
    """A file's new text; `first_line` is the entry's line in it, counted from 1; 0: nowhere. `lost`: what did not
    stay."""

    text: str
    first_line: int = 0
    lost: str = ""


def entries(text: str) -> list[Entry]:
    """The rules for all runs that a file's text names, in its order. Raises `ConfigurationError` when it is invalid
    YAML."""
    sequence = _sequence(text)
    if sequence is None:
        return []
    lines = text.splitlines()
    return [_entry(node, lines) for node in sequence.value if isinstance(node, yaml.MappingNode)]


def put(text: str, entry: str, was: str | None) -> Edited:
    """The file with `entry` in place of the rule that is called `was`, else at the end of `rules`.

    Args:
        text: of the whole file; "": there is none yet.
        entry: YAML of one rule, as an editor shows it.
        was: name of the rule to replace; None: it is a new one.

    Raises:
        ConfigurationError: `entry` is not one mapping, with its line; or it cannot be put there without changing
            something else.
    """
    given = located.plain(one(entry))
    edited, lost = _in_lines(text)
    old = next((rule for rule in entries(edited) if rule.name == was), None)
    after = _replaced(edited, old, entry) if old is not None else _appended(edited, entry)
    _check(text, after.text, was if old is not None else None, given)
    return Edited(after.text, after.first_line, lost)


def one(entry: str) -> located.Table:
    """The mapping that the text of one rule is. Raises `ConfigurationError` with its line, also for aliases.

    Aliases of aliases can mean more than fits into any memory, and this text comes from anyone who sees the page.
    """
    with suppress(yaml.YAMLError):  # invalid YAML at all is said below, with its line
        for token in yaml.scan(entry, yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise ConfigurationError(f"line:{token.start_mark.line + 1}: an alias; write out its value")
    return located.parse(entry, "line")


def without(text: str, name: str) -> Edited:
    """The file without the rule called `name`. Raises `ConfigurationError` when there is none."""
    edited, lost = _in_lines(text)
    old = next((rule for rule in entries(edited) if rule.name == name), None)
    if old is None:
        raise ConfigurationError(
            f"{OVERLAY} has no rule {name!r}; built-in rules and those of other files can be disabled here, not removed"
        )
    lines = edited.splitlines(keepends=True)
    rest = [*lines[: old.first], *lines[old.last + 1 :]]
    after = "".join(rest) if len(entries(edited)) > 1 else _emptied(rest)
    _check(text, after, name, None)
    return Edited(after, 0, lost)


def enabled(entry: str, *, on: bool) -> str:
    """The text of one rule with `enabled` as asked for; everything else in it stays."""
    node = _mapping(entry)
    word = "true" if on else "false"
    for key, value in node.value:
        if key.value == "enabled":
            return entry[: value.start_mark.index] + word + entry[value.end_mark.index :]
    if node.flow_style:
        start = node.start_mark.index + 1
        return f"{entry[:start]}enabled: {word}, {entry[start:].lstrip()}"
    return f"{entry.rstrip()}\nenabled: {word}\n"


def _mapping(text: str) -> yaml.MappingNode:
    """The mapping that `text` is. Raises `ConfigurationError` when it is none."""
    located.parse(text, "line")
    node = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError("line:1: expected a mapping, such as `name: …`")
    return node


def _sequence(text: str) -> yaml.SequenceNode | None:
    """What stands under `rules`."""
    located.parse(text, OVERLAY)  # with file and line, if it is invalid YAML
    node = yaml.compose(text, yaml.SafeLoader)
    values = [] if node is None else [value for key, value in node.value if key.value == _KEY]
    return next((value for value in values if isinstance(value, yaml.SequenceNode)), None)


def _entry(node: yaml.MappingNode, lines: list[str]) -> Entry:
    first, column = node.start_mark.line, node.start_mark.column
    last = _last_line(node, lines)
    while last > first and _between(lines[last], column):
        last -= 1  # a block ends where the next thing begins; what lies between belongs to that
    body = [lines[first][column:], *(_outdented(line, column) for line in lines[first + 1 : last + 1])]
    name = next((str(value.value) for key, value in node.value if key.value == "name"), "")
    return Entry(name, first, last, column, "\n".join(body) + "\n")


def _last_line(node: yaml.MappingNode, lines: list[str]) -> int:
    end = node.end_mark
    next_begins = not node.flow_style and (end.line >= len(lines) or not lines[end.line][: end.column].strip())
    return end.line - 1 if next_begins else end.line


def _between(line: str, column: int) -> bool:
    """Whether a line stands between two entries: blank, or a comment further out than what the entry says."""
    inner = line.lstrip()
    return not inner or (inner.startswith("#") and len(line) - len(inner) < column)


def _outdented(line: str, column: int) -> str:
    return line[min(column, len(line) - len(line.lstrip())) :]


def _in_lines(text: str) -> tuple[str, str]:
    """The text with its rules one below the other, and what that cost: ``rules: [{…}, {…}]`` has no lines of their
    own."""
    sequence = _sequence(text)
    if sequence is None or not sequence.flow_style:
        return text, ""
    start, end = sequence.start_mark.index, sequence.end_mark.index
    items = [text[item.start_mark.index : item.end_mark.index] for item in sequence.value]
    listed = "".join(_item(textwrap.dedent(item), _INDENT) for item in items)
    lost = "comments within `rules: […]`" if re.search(r"(^|\s)#", text[start:end]) else ""
    tail = text[end:].removeprefix("\n")
    return f"{text[:start].rstrip(' ')}\n{listed}{tail}" if items else f"{text[:start]}[]{text[end:]}", lost


def _item(entry: str, indent: int) -> str:
    """An entry as an item of a sequence."""
    body = textwrap.indent(entry.strip("\n"), " " * (indent + 2), lambda _: True)
    lines = "\n".join(line.rstrip() for line in body.splitlines())
    return f"{' ' * indent}- {lines[indent + 2 :]}\n"


def _replaced(text: str, old: Entry, entry: str) -> Edited:
    lines = text.splitlines(keepends=True)
    new = _item(entry, old.column - 2)
    return Edited("".join([*lines[: old.first], new, *lines[old.last + 1 :]]), old.first + 1)


def _appended(text: str, entry: str) -> Edited:
    existing = entries(text)
    if existing:
        lines = text.splitlines(keepends=True)
        above = "".join(lines[: existing[-1].last + 1])
        above += "" if above.endswith("\n") else "\n"
        new = _item(entry, existing[-1].column - 2)
        return Edited(above + new + "".join(lines[existing[-1].last + 1 :]), existing[-1].last + 2)
    above, below = _opened(text)
    return Edited(f"{above}{_item(entry, _INDENT)}{below}", above.count("\n") + 1)


def _opened(text: str) -> tuple[str, str]:
    """A file without rules, cut where the first one goes."""
    node = yaml.compose(text, yaml.SafeLoader)
    for key, value in [] if node is None else node.value:
        if key.value == _KEY:  # `rules:` or `rules: []`
            above = text[: key.end_mark.index] + ":\n"
            return above, text[value.end_mark.index :].lstrip(":").removeprefix("\n")
    kept = text if not text or text.endswith("\n") else f"{text}\n"
    return f"{kept or _HEADER}{_KEY}:\n", ""


def _emptied(lines: list[str]) -> str:
    """`rules:` with nothing below it would mean nothing at all."""
    return "".join(re.sub(r"^rules:\s*(#.*)?$", r"rules: []  \1", line).rstrip() + "\n" for line in lines)


def _check(before: str, after: str, was: str | None, given: Any) -> None:
    """Raises `ConfigurationError` unless the rule `was` alone has become `given` (None: gone; `was` None: it is
    new)."""
    expected = _meaning(before)
    rules = list(_changed(expected.pop(_KEY, None) or [], was, given))
    actual = _meaning(after)
    if (actual.pop(_KEY, None) or [], actual) != (rules, expected):
        raise ConfigurationError(
            f"the rule cannot be put into {OVERLAY} without changing something else in it; edit the file by hand"
        )


def _changed(rules: list[Mapping[str, Any]], was: str | None, given: Any) -> Iterator[Any]:
    for rule in rules:
        if was is None or rule.get("name") != was:
            yield rule
        elif given is not None:
            yield given
    if was is None and given is not None:
        yield given


def _meaning(text: str) -> dict[str, Any]:
    return dict(located.plain(located.parse(text, OVERLAY)))
