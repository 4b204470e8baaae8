"""Editing the rules of a home from a page: see, check, save, disable and delete them. Done by the service, which reads
them again.

What is saved goes into a file of the editor's own, `rule_file.OVERLAY`, over the files that people write, which stay as
they are. It is written as a whole, atomically, and only if no one has changed any of the files since they were looked
at. A rule that is wrong is refused with its line and words. The comments and the order of everything else in the file
stay.
"""

from __future__ import annotations

import json
import re
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from logprobe.alerts import audit
from logprobe.alerts.rules import rule_file
from logprobe.alerts.rules.editing import rule_text
from logprobe.alerts.rules.editing.rule_text import Edited
from logprobe.alerts.rules.rule import Rule
from logprobe.alerts.rules.rule_file import OVERLAY, RuleBook, RuleFileError
from logprobe.alerts.rules.step_conditions import Threshold
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.files import replace_file
from logprobe.monitor import located
from logprobe.monitor.service import actions
from logprobe.monitor.service.action import Action
from logprobe.monitor.store.store import Store

BUILT_IN: Final = "built in"


class Layer(NamedTuple):
    """What one file says of a rule: its name, or `BUILT_IN`, and the text of the entry."""

    file: str
    text: str


class ListedRule(TypedDict):
    """A rule for a list. `special`: another one applies to the run. `below`: what files say below the entry;
    `own`: it is the editor's."""

    name: str
    severity: str
    kind: str
    metric: str | None
    fires: str
    about: Mapping[str, str | None]
    slice: str | None
    enabled: bool
    special: bool
    where: str
    own: bool
    text: str
    below: list[Mapping[str, str]]
    form: Mapping[str, object] | None


class Listed(TypedDict):
    """The rules of a home. `problem`: why what the files say is not in effect; `runs`: patterns of runs with rules of
    their own."""

    file: str
    fingerprint: str
    problem: str | None
    rules: list[ListedRule]
    runs: list[str]


class Checked(TypedDict):
    """Result of checking the text of a rule.

    `problems`: lines that say what is wrong, counted in the text. `form`: see `form`. `lost`: part of the text that a
    save does not keep.
    """

    problems: list[str]
    form: Mapping[str, object] | None
    lost: str


class Saved(TypedDict):
    """A file that was written: its fingerprint, and what of it did not stay."""

    fingerprint: str
    lost: str


def row(rule: Rule, layers: Sequence[Layer], in_force: Mapping[str, Rule]) -> ListedRule:
    """See `ListedRule`; `in_force`: the rules for the run, by name."""
    return {
        "name": rule.name,
        "severity": rule.severity,
        "kind": rule.when.kind,
        "metric": rule.key,
        "fires": rule.fires_when,
        "about": rule.annotations.model_dump(),
        "slice": rule.slice,
        "enabled": rule.enabled,
        "special": rule.enabled and in_force.get(rule.name) != rule,
        "where": ", changed in ".join(layer.file for layer in layers),
        "own": bool(layers) and layers[-1].file == OVERLAY,
        "text": layers[-1].text if layers else "",
        "below": [layer._asdict() for layer in layers[:-1]],
        "form": form(rule, shipped=bool(layers) and layers[0].file == BUILT_IN),
    }


def form(rule: Rule, *, shipped: bool) -> Mapping[str, object] | None:
    """The fields of a guided form; None: the rule says more than the form has room for. What is `shipped` stays below
    an entry."""
    when, said = rule.when, rule.annotations
    if not isinstance(when, Threshold) or (when.above is not None and when.below is not None):
        return None
    if not shipped and (rule.cause or rule.layer or rule.labels or said.description or said.runbook or said.fix):
        return None
    says = {"above": when.above, "below": when.below}
    side = next(name for name, value in says.items() if value is not None)
    return {
        "name": rule.name,
        "metric": rule.key,
        "slice": rule.slice or "",
        "side": side,
        "limit": says[side],
        "clear": when.clear,
        "window": when.window,
        "for": rule.for_,
        "keep_firing": rule.keep_firing,
        "severity": rule.severity,
        "summary": rule.annotations.summary,
    }


RULES: Final = "alerts.rules"
CHECK: Final = "alerts.rules.check"
SAVE: Final = "alerts.rules.save"
ENABLE: Final = "alerts.rules.enable"
DELETE: Final = "alerts.rules.delete"

_LONGEST: Final = 20_000  # characters of one rule
_PROBLEM: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+): (?P<words>.*)$", re.DOTALL)

Document = Mapping[str, Any]
# Of a home's rule files, by name, in the order in which they apply; the editor's own is always there
Texts = Mapping[str, str]


class Editor:
    """One home's rules, edited by one at a time. Used from any thread."""

    def __init__(self, store: Store, problem: Callable[[], str | None], clock: Callable[[], datetime]) -> None:
        """`problem`: why what the files say is not in effect."""
        self._store = store
        self._home = store.home.path
        self._problem = problem
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[Document, Saved] | None = None
        self._listed: tuple[tuple[Texts, str, str | None], Listed] | None = None

    def actions(self) -> dict[str, Action]:
        """For the service's endpoint."""
        return {
            RULES: Action("the alert rules and their source", self._rules),
            CHECK: Action("what is wrong with the text of a rule", self._check),
            SAVE: Action("write a rule, over those of the home's files", self._saver(_saved)),
            ENABLE: Action("enable or disable a rule", self._saver(_switched)),
            DELETE: Action("delete a rule that was written here; what it changed applies again", self._saver(_deleted)),
        }

    def _rules(self, document: Document) -> Listed:
        """``{"run"}``."""
        texts, run = self._texts(), str(document.get("run") or "")
        asked = (texts, run, self._problem())
        listed = self._listed  # once: another thread may put another list there
        if listed is None or listed[0] != asked:  # pages ask every other second
            listed = self._listed = (asked, self._list(texts, run))
        return listed[1]

    def _list(self, texts: Texts, run: str) -> Listed:
        try:
            book, problem, layers = rule_file.merge(texts), self._problem(), _layers(texts)
        except ConfigurationError as error:
            book, problem, layers = rule_file.load(), self._problem() or str(error), _layers({})
        special = [entry.match for entry in book.runs]
        in_force = {rule.name: rule for rule in book.for_run(run)}
        return {
            "file": str(self._home / OVERLAY),
            "fingerprint": _fingerprint(texts),
            "problem": problem,
            "rules": [row(rule, layers.get(rule.name, []), in_force) for rule in book.rules],
            "runs": special,
        }

    def _check(self, document: Document) -> Checked:
        """``{"text", "was", "run"}``."""
        try:
            edited, book, name = _checked(self._texts(), document)
        except RuleFileError as error:
            return {"problems": list(error.problems), "form": None, "lost": ""}
        rule = next(rule for rule in (*book.for_run(str(document.get("run"))), *book.rules) if rule.name == name)
        return {"problems": [], "form": form(rule, shipped=name in _entries(_shipped_text())), "lost": edited.lost}

    def _saver(self, change: Callable[[Texts, Document], tuple[Edited, str, str]]) -> Callable[[Document], Saved]:
        """An action that changes the file: ``{"based_on": fingerprint, "author": …, …}``."""

        def save(document: Document) -> Saved:
            with self._lock:
                if self._last is not None and self._last[0] == document:
                    return self._last[1]  # asked again because a connection broke
                texts = self._texts()
                if str(document.get("based_on")) != _fingerprint(texts):
                    raise ConfigurationError(
                        "the rules were changed in the meantime; review the new version, and save again"
                    )
                edited, action, subject = change(texts, document)
                self._write(edited, document, action, subject)
                answer: Saved = {"fingerprint": _fingerprint({**texts, OVERLAY: edited.text}), "lost": edited.lost}
                self._last = (dict(document), answer)
                return answer

        return save

    def _write(self, edited: Edited, document: Document, action: str, subject: str) -> None:
        author = actions.text(document, "author")
        with self._store.transaction() as cursor:
            words = " ".join(str(document.get("text") or "").split())[:500] or OVERLAY
            audit.note(self._store, cursor, self._clock(), author=author, action=action, subject=subject, words=words)
            _replace(self._home / OVERLAY, edited.text)

    def _texts(self) -> Texts:
        files = [self._home / OVERLAY, *rule_file.files(self._home)]
        by_name = {file.relative_to(self._home).as_posix(): file for file in files}
        ordered = sorted(by_name, key=lambda name: (name.startswith(f"{rule_file.FOLDER}/"), name))
        return {name: rule_file.read(by_name[name]) if by_name[name].exists() else "" for name in ordered}


def _saved(texts: Texts, document: Document) -> tuple[Edited, str, str]:
    edited, _, name = _checked(texts, document)
    return edited, "rule saved", name


def _switched(texts: Texts, document: Document) -> tuple[Edited, str, str]:
    """``{"name", "on"}``. What another file defines gets an entry here; one that says nothing else goes when it is
    enabled again."""
    name, on = actions.text(document, "name"), document.get("on") is True
    text = texts[OVERLAY]
    own = _entries(text)
    if on and _says_only_enabled(own.get(name)):
        edited = rule_text.without(text, name)
    else:
        entry = rule_text.enabled(own.get(name, f"name: {name}\n"), on=on)
        edited = rule_text.put(text, entry, name if name in own else None)
    book = rule_file.merge({**texts, OVERLAY: edited.text})
    if next((rule.enabled for rule in book.rules if rule.name == name), None) is not on:
        raise ConfigurationError(_not_taken(book, name))
    return edited, "rule enabled" if on else "rule disabled", name


def _deleted(texts: Texts, document: Document) -> tuple[Edited, str, str]:
    """``{"name"}``."""
    name = actions.text(document, "name")
    edited = rule_text.without(texts[OVERLAY], name)
    rule_file.merge({**texts, OVERLAY: edited.text})
    return edited, "rule deleted", name


def _not_taken(book: RuleBook, name: str) -> str:
    """Why an entry for `name` changes nothing."""
    if name not in book.files:
        return rule_file.nothing_to_change(name, book.files)
    return f"{book.files[name]} has the last word on {name!r}; change it there"


def _says_only_enabled(entry: str | None) -> bool:
    return entry is not None and set(located.parse(entry, "").values) == {"name", "enabled"}


def _checked(texts: Texts, document: Document) -> tuple[Edited, RuleBook, str]:
    """The editor's file with the rule of ``{"text", "was"}``, what all files then mean, and the rule's name.

    Raises `RuleFileError`: what is wrong with the rule has its own line.
    """
    entry = str(document.get("text") or "")
    if len(entry) > _LONGEST:
        raise RuleFileError([f"a rule has at most {_LONGEST:,} characters"])
    try:
        name = _named(entry)
        _refuse_hidden(texts, entry, name, document.get("was"))
        edited = rule_text.put(texts[OVERLAY], entry, document.get("was") or None)
    except ConfigurationError as error:
        raise RuleFileError([_readable(str(error))]) from error
    try:
        book = rule_file.merge({**texts, OVERLAY: edited.text})
    except RuleFileError as error:
        lines = range(edited.first_line, edited.first_line + entry.count("\n") + 1)
        raise RuleFileError([_of_entry(problem, lines) for problem in error.problems]) from error
    if book.files.get(name) != OVERLAY:
        raise RuleFileError([f"line 1: {_not_taken(book, name)}"])
    return edited, book, name


def _refuse_hidden(texts: Texts, entry: str, name: str, was: Any) -> None:
    """Raises `ConfigurationError` for what the entry leaves to another file's rule while it looks as if it did not."""
    file, text = next(
        ((file, hidden) for file, text in reversed(list(texts.items())) if (hidden := _entries(text).get(name))),
        (OVERLAY, ""),
    )
    if file == OVERLAY:
        return
    if name != was:
        raise ConfigurationError(f"line:1: {file} has a rule {name!r}; open that one to change it")
    given = located.parse(entry, "line").values
    left = sorted(located.parse(text, file).values.keys() - given.keys()) if "when" not in given else []
    if left:
        raise ConfigurationError(f"line:1: {file} sets `{left[0]}` of this rule; to change it, set it here as well")


def _layers(texts: Texts) -> dict[str, list[Layer]]:
    """By rule: the entries that make it, the first one below."""
    layers: dict[str, list[Layer]] = {}
    for file, text in {BUILT_IN: _shipped_text(), **texts}.items():
        for name, entry in _entries(text).items():
            layers.setdefault(name, []).append(Layer(file, entry))
    return layers


def _entries(text: str) -> dict[str, str]:
    return {entry.name: entry.text for entry in rule_text.entries(text)}


def _named(entry: str) -> str:
    """The name of a rule. Raises `ConfigurationError` with the line of invalid YAML."""
    name = rule_text.one(entry).values.get("name")
    if not name:
        raise ConfigurationError("line:1: a rule needs a `name`; a new rule needs `when`")
    return str(name)


def _of_entry(problem: str, lines: Sequence[int]) -> str:
    """A line of the file as one of the entry; one elsewhere keeps the file's name."""
    match = _PROBLEM.match(problem)
    if match is None or match["file"] != OVERLAY or int(match["line"]) not in lines:
        return problem
    return f"line {int(match['line']) - lines[0] + 1}: {match['words']}"


def _readable(problem: str) -> str:
    match = _PROBLEM.match(problem)
    return f"line {match['line']}: {match['words']}" if match is not None and match["file"] == "line" else problem


def _shipped_text() -> str:
    return (resources.files("logprobe.alerts.rules") / rule_file.SHIPPED).read_text(encoding="utf-8")


def _fingerprint(texts: Texts) -> str:
    return sha256(json.dumps(list(texts.items())).encode()).hexdigest()[:16]


def _replace(file: Path, text: str) -> None:
    """The file with this content, or as it was; with the permissions it had. Raises `ConfigurationError`."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
        replace_file(file, text.encode(), mode=mode)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error
