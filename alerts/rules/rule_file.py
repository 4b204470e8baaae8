"""Reading rules: shipped defaults, a home's own over them, and what those say for single runs over both.

    rules = for_home(Home("home"))
    rules.for_run("my-run")

An entry whose name is known changes the fields it names; one with a new name is a new rule. In a home, the section
``alerts`` of ``logprobe.yaml`` comes first, then the files of ``alerts.d`` by name. A later file's entry with its own
`when` leaves nothing of an earlier file's. Everything unknown is an error that names file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from logprobe.alerts.rules.rule import CONDITIONS, Annotations, ForRuns, Rule, RuleSet
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import located, settings_file
from logprobe.monitor.home import Home
from logprobe.monitor.located import Table

SHIPPED: Final = "default_rules.yaml"
SECTION: Final = "alerts"
FOLDER: Final = "alerts.d"  # in a home: files of more rules
OVERLAY: Final = f"{FOLDER}/dashboard.yaml"  # written by the dashboard's editor
_MOST_FILES: Final = 100
_MERGED: Final = ("labels", "annotations")  # an override adds to these; everything else it replaces


# The model of what stands below a key.
_BELOW: Final[dict[str, type[BaseModel]]] = {"rules": Rule, "runs": ForRuns, "annotations": Annotations}


class RuleFileError(ConfigurationError):
    """A rule file cannot be used. `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more; see `logprobe alerts check`)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Valid rules of a home."""

    rules: tuple[Rule, ...]
    runs: tuple[ForRuns, ...] = ()
    tell_within: timedelta = timedelta(hours=24)
    files: Mapping[str, str] = field(default_factory=dict)  # by rule: the last one that names it, `SHIPPED` among them

    def for_run(self, run: str) -> tuple[Rule, ...]:
        """The rules that are in effect for `run`."""
        by_name = {rule.name: rule for rule in self.rules}
        for special in self.runs:
            if fnmatchcase(run, special.match):
                by_name |= {rule.name: rule for rule in special.rules}
        return tuple(rule for rule in by_name.values() if rule.enabled)


def for_home(home: Home) -> RuleBook:
    """The rules of a home: those that are shipped, and its files over them. Raises `RuleFileError`."""
    try:
        settings_file.section(home.path, SECTION)
    except ConfigurationError as error:
        raise RuleFileError([str(error)]) from error
    return merge({str(file): read(file) for file in files(home.path)})


def files(home: Path) -> list[Path]:
    """The rule files of a home, in the order in which they apply. Raises `RuleFileError` when they cannot be listed."""
    settings = home / settings_file.FILE
    return [*([settings] if settings.exists() else []), *more_files(home)]


def more_files(home: Path) -> list[Path]:
    """The files of `FOLDER`, in the order in which they apply. Raises `RuleFileError` when they cannot be listed."""
    folder = home / FOLDER
    try:
        paths = sorted(file for file in folder.iterdir() if file.suffix == ".yaml" and not file.name.startswith("."))
    except FileNotFoundError:
        paths = []
    except OSError as error:
        raise RuleFileError([f"{folder}: cannot be read ({error})"]) from error
    if len(paths) > _MOST_FILES:
        raise RuleFileError([f"{folder} has {len(paths)} rule files; at most {_MOST_FILES} are read"])
    return paths


def read(file: Path) -> str:
    """The text of a rule file. Raises `RuleFileError`."""
    try:
        return settings_file.text(file)
    except ConfigurationError as error:
        raise RuleFileError([str(error)]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RuleFileError([f"{file}: cannot be read ({error})"]) from error


def load(file: Path | None = None) -> RuleBook:
    """Rules from `file`, None: the shipped ones alone. Raises `RuleFileError`."""
    return merge({} if file is None else {str(file): read(file)})


def parse(text: str, file: str) -> RuleBook:
    """Rules from the text of a file. Raises `RuleFileError`."""
    return merge({file: text})


def merge(texts: Mapping[str, str]) -> RuleBook:
    """Rules from the texts of files by name, each over those before it. Raises `RuleFileError`."""
    try:
        merged = _merged([located.parse(text, file) for file, text in texts.items()])
    except ConfigurationError as error:
        raise RuleFileError([str(error)]) from error
    try:
        rules = RuleSet.model_validate(located.plain(merged))
    except ValidationError as error:
        raise RuleFileError(list(_problems(error, merged))) from error
    by_rule = {str(entry.values["name"]): entry.place.file for entry in located.items(merged, "rules")}
    return RuleBook(rules.rules, rules.runs, rules.tell_within, by_rule)


def schema() -> dict[str, object]:
    """JSON schema of a rule file, for editors."""
    document = RuleSet.model_json_schema()
    # Against the defaults an entry may name only what it changes.
    document["$defs"]["Rule"]["required"] = ["name"]
    return {**document, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "logprobe alert rules"}


def _merged(given: Sequence[Table]) -> Table:
    """The files over the defaults: every rule whole."""
    shipped = {} if any(table.values.get("defaults") is False for table in given) else _shipped()
    rules, whole = shipped, located.empty("")
    for table in given:
        rules = _over(rules, _with_something_to_change(table, rules), shipped=shipped)
        whole = table.over(whole)
    runs = [
        located.with_items(special, "rules", list(_over(rules, located.items(special, "rules"), only=True).values()))
        for table in given
        for special in located.items(table, "runs")
    ]
    whole = located.with_items(whole, "rules", list(rules.values()))
    return located.with_items(whole, "runs", runs) if runs else whole


def _with_something_to_change(table: Table, rules: Mapping[str, Table]) -> list[Table]:
    """A file's entries. The editor's own may outlive the rule that they change: its file must not keep a service from
    starting."""
    entries = located.items(table, "rules")
    if not table.place.file.endswith(OVERLAY):
        return entries
    return [entry for entry in entries if "when" in entry.values or entry.values.get("name") in rules]


def _shipped() -> dict[str, Table]:
    text = (resources.files("logprobe.alerts.rules") / SHIPPED).read_text(encoding="utf-8")
    return _over({}, located.items(located.parse(text, SHIPPED), "rules"))


def _over(
    base: Mapping[str, Table],
    entries: Sequence[Table],
    *,
    only: bool = False,
    shipped: Mapping[str, Table] | None = None,
) -> dict[str, Table]:
    """Rules by name: those of `base` with what `entries` change, and new ones; with `only`, those of `entries` alone.

    With `shipped`, of an entry's rule with a `when` only what is shipped stays.
    """
    result = {} if only else dict(base)
    seen: set[str] = set()
    for entry in entries:
        name = str(entry.values.get("name", ""))
        if name in seen:
            raise ConfigurationError(f"{entry.place}: a rule {name!r} stands here twice")
        seen.add(name)
        if name not in base and "when" not in entry.values:
            raise ConfigurationError(f"{entry.place}: {nothing_to_change(name, base)}")
        below = (base if shipped is None or "when" not in entry.values else shipped).get(name)
        result[name] = entry if below is None else entry.over(below, _MERGED)
    return result


def nothing_to_change(name: str, base: Iterable[str]) -> str:
    """What is wrong with an entry that changes a rule `name` which is not in `base`."""
    near = get_close_matches(name, base, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "a new rule needs `when`"
    return f"there is no rule {name!r} to change; {hint}" if name else f"a rule needs a `name`; {hint}"


def _problems(error: ValidationError, merged: Table) -> Iterator[str]:
    for problem in error.errors():
        # A condition's kind is part of pydantic's path, and no part of the file's.
        path = [
            key
            for i, key in enumerate(problem["loc"])
            if not (i and problem["loc"][i - 1] == "when" and key in CONDITIONS)
        ]
        words = _words(problem["type"], problem["msg"], problem["loc"])
        yield f"{located.place_of(merged, path)}: {_dotted(path)}{words}"


def _dotted(path: Sequence[Any]) -> str:
    """What to look for in the line: the key, and the one it stands below."""
    if not path or isinstance(path[-1], int):
        return ""
    keys = [str(key) for key in path[-2:] if not isinstance(key, int)]
    return f"`{'.'.join(keys)}`: "


def _words(kind: str, message: str, path: Sequence[Any]) -> str:
    if kind == "extra_forbidden":
        allowed = _fields_at(path[:-1])
        near = get_close_matches(str(path[-1]), allowed, n=1)
        return "unknown key; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(allowed)}")
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return f"a condition has a `kind`: {', '.join(CONDITIONS)}"
    return message.removeprefix("Value error, ")


def _fields_at(path: Sequence[Any]) -> list[str]:
    model: type[BaseModel] = RuleSet
    for key in path:
        model = (CONDITIONS | _BELOW).get(str(key), model)
    return [field.alias or name for name, field in model.model_fields.items()]
