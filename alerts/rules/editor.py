"""Editing the rules of a home from a page: see them, try one out, save, disable and delete it. Done by the service, which reads the file anew.

The file is written as a whole, atomically, and only if nobody has changed it since it was looked at. A rule that is wrong is refused
with its line and words. The comments and the order of everything else in the file stay.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Final

from logprobe.alerts import audit, located
from logprobe.alerts.rules import rule_file, rule_text, trying
from logprobe.alerts.rules.rule import PresentCondition, Rule
from logprobe.alerts.rules.rule_file import RuleBook, RuleFileError
from logprobe.alerts.rules.rule_rows import form, row
from logprobe.alerts.rules.rule_text import Edited
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.action import Action
from logprobe.monitor.store import Store

RULES: Final = "alerts.rules"
TRY: Final = "alerts.rules.try"
SAVE: Final = "alerts.rules.save"
ENABLE: Final = "alerts.rules.enable"
DELETE: Final = "alerts.rules.delete"

_SECONDS: Final = 5.0  # for trying a rule out: whoever types waits for it
_MOST_RUNS: Final = 20
_LONGEST: Final = 20_000  # characters of one rule
_PROBLEM: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+): (?P<words>.*)$", re.DOTALL)

Document = Mapping[str, Any]


class Editor:
    """One home's rules, edited by one at a time. Used from any thread."""

    def __init__(self, store: Store, problem: Callable[[], str | None], clock: Callable[[], datetime]) -> None:
        """`problem`: why what the file says is not in force."""
        self._store = store
        self._file = store.home.path / rule_file.FILE
        self._problem = problem
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[Document, dict[str, Any]] | None = None
        self._listed: tuple[tuple[str, str, str | None], dict[str, Any]] | None = None

    def actions(self) -> dict[str, Action]:
        """For the service's endpoint."""
        return {
            RULES: Action("the alert rules and where they stand", self._rules),
            TRY: Action("what a rule would have said in stored runs", self._try),
            SAVE: Action("write a rule into the home's rule file", self._saver(_saved)),
            ENABLE: Action("enable or disable a rule", self._saver(_switched)),
            DELETE: Action("delete a rule from the home's rule file", self._saver(_deleted)),
        }

    def _rules(self, document: Document) -> dict[str, Any]:
        """``{"run"}`` → ``{"file", "fingerprint", "problem", "rules": […], "runs": […]}``; a rule as `rule_rows.row` has it."""
        text, run = self._text(), str(document.get("run") or "")
        asked = (text, run, self._problem())
        known = self._listed  # once: another thread may put another list there
        if known is None or known[0] != asked:  # pages ask every other second
            known = self._listed = (asked, self._list(text, run))
        return known[1]

    def _list(self, text: str, run: str) -> dict[str, Any]:
        shipped = {entry.name: entry.text for entry in rule_text.entries(_shipped_text())}
        try:
            book, problem = rule_file.parse(text, rule_file.FILE), self._problem()
            own = {entry.name: entry.text for entry in rule_text.entries(text)}
        except ConfigurationError as error:
            book, problem, own = rule_file.load(), self._problem() or str(error), {}
        special = [each.match for each in book.runs]
        in_force = {rule.name: rule for rule in book.for_run(run)}
        return {
            "file": str(self._file),
            "fingerprint": _fingerprint(text),
            "problem": problem,
            "rules": [row(rule, shipped.get(rule.name), own.get(rule.name), in_force) for rule in book.rules],
            "runs": special,
        }

    def _try(self, document: Document) -> dict[str, Any]:
        """``{"text", "was", "run", "runs"}`` → ``{"problems", "form", "untestable", "trial", "others"}``.

        `problems`: lines that say what is wrong, counted in `text`. `trial`: of `run`, as `Trial.document` has it. `others`: of as many of
        the newest other runs as there was time for, ``{"run", "steps", "fired", "cut"}``.
        """
        answer: dict[str, Any] = {"problems": [], "form": None, "untestable": None, "trial": None, "others": []}
        try:
            edited, book, name = self._edited(document)
        except RuleFileError as error:
            return {**answer, "problems": list(error.problems)}
        rule = next(rule for rule in (*book.for_run(str(document.get("run"))), *book.rules) if rule.name == name)
        shipped = any(entry.name == name for entry in rule_text.entries(_shipped_text()))
        answer |= {"form": form(rule, shipped=shipped), "lost": edited.lost}
        if isinstance(rule.when, PresentCondition):
            words = "it looks at how things are now, and a recording has no now; it can only be tried in force"
            return {**answer, "untestable": words}
        return {**answer, **self._tried(rule, document)}

    def _tried(self, rule: Rule, document: Document) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        run = str(document.get("run") or "")
        known = [row["run"] for row in self._store.read("app_runs").to_pylist()]
        trial = trying.tried(self._store, run, rule, until=until) if run in known else None
        others = []
        most = document.get("runs")
        for other in [name for name in known if name != run][: min(most if isinstance(most, int) else 0, _MOST_RUNS)]:
            if time.monotonic() > until:
                break
            found = trying.tried(self._store, other, rule, until=until, detailed=False)
            others.append({"run": other, "steps": found.steps, "fired": len(found.fired), "cut": found.cut})
        return {"trial": None if trial is None else trial.document(), "others": others}

    def _edited(self, document: Document) -> tuple[Edited, RuleBook, str]:
        """The file with the rule in it, what it then means, and the rule's name. Raises `RuleFileError` with lines of the rule."""
        return _checked(self._text(), document)

    def _saver(
        self, change: Callable[[str, Document], tuple[Edited, str, str]]
    ) -> Callable[[Document], dict[str, Any]]:
        """An action that changes the file: ``{"based_on": fingerprint, "author": …, …}`` → ``{"fingerprint", "lost"}``."""

        def save(document: Document) -> dict[str, Any]:
            with self._lock:
                if self._last is not None and self._last[0] == document:
                    return self._last[1]  # asked again because a connection broke
                text = self._text()
                if str(document.get("based_on")) != _fingerprint(text):
                    raise ConfigurationError(
                        f"{rule_file.FILE} was changed meanwhile; look at what stands there now, and save again"
                    )
                edited, action, subject = change(text, document)
                self._write(edited, document, action, subject)
                answer = {"fingerprint": _fingerprint(edited.text), "lost": edited.lost}
                self._last = (dict(document), answer)
                return answer

        return save

    def _write(self, edited: Edited, document: Document, action: str, subject: str) -> None:
        author = _word(document, "author")
        with self._store.transaction() as cursor:
            words = " ".join(str(document.get("text") or "").split())[:500] or rule_file.FILE
            audit.note(self._store, cursor, self._clock(), author=author, action=action, subject=subject, words=words)
            _replace(self._file, edited.text)

    def _text(self) -> str:
        try:
            return self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise RuleFileError([f"{self._file}: cannot be read ({error})"]) from error


def _saved(text: str, document: Document) -> tuple[Edited, str, str]:
    edited, _, name = _checked(text, document)
    return edited, "rule saved", name


def _switched(text: str, document: Document) -> tuple[Edited, str, str]:
    """``{"name", "on"}``. What is shipped gets an entry of its own; one that says nothing else goes when it is enabled again."""
    name, on = _word(document, "name"), document.get("on") is True
    own = {entry.name: entry.text for entry in rule_text.entries(text)}
    if on and _says_only_enabled(own.get(name)):
        edited = rule_text.without(text, name)
    else:
        entry = rule_text.enabled(own.get(name, f"name: {name}\n"), on=on)
        edited = rule_text.put(text, entry, name if name in own else None)
    rule_file.parse(edited.text, rule_file.FILE)
    return edited, "rule enabled" if on else "rule disabled", name


def _deleted(text: str, document: Document) -> tuple[Edited, str, str]:
    """``{"name"}``."""
    name = _word(document, "name")
    edited = rule_text.without(text, name)
    rule_file.parse(edited.text, rule_file.FILE)
    return edited, "rule deleted", name


def _says_only_enabled(entry: str | None) -> bool:
    return entry is not None and set(located.parse(entry, "").values) == {"name", "enabled"}


def _checked(text: str, document: Document) -> tuple[Edited, RuleBook, str]:
    """The file's `text` with the rule of ``{"text", "was"}``. Raises `RuleFileError`: what is wrong with the rule has its own line."""
    entry = str(document.get("text") or "")
    if len(entry) > _LONGEST:
        raise RuleFileError([f"a rule has at most {_LONGEST:,} characters"])
    try:
        name = _named(entry)
        edited = rule_text.put(text, entry, document.get("was") or None)
    except ConfigurationError as error:
        raise RuleFileError([_readable(str(error))]) from error
    try:
        return edited, rule_file.parse(edited.text, rule_file.FILE), name
    except RuleFileError as error:
        lines = range(edited.first_line, edited.first_line + entry.count("\n") + 1)
        raise RuleFileError([_of_entry(problem, lines) for problem in error.problems]) from error


def _named(entry: str) -> str:
    """The name of a rule. Raises `ConfigurationError` with the line of what is no YAML."""
    name = rule_text.one(entry).values.get("name")
    if not name:
        raise ConfigurationError("line:1: a rule needs a `name`; a new rule says `when`")
    return str(name)


def _of_entry(problem: str, lines: Sequence[int]) -> str:
    """A line of the file as one of the entry; one elsewhere keeps the file's name."""
    found = _PROBLEM.match(problem)
    if found is None or int(found["line"]) not in lines:
        return problem
    return f"line {int(found['line']) - lines[0] + 1}: {found['words']}"


def _readable(problem: str) -> str:
    found = _PROBLEM.match(problem)
    return f"line {found['line']}: {found['words']}" if found is not None and found["file"] == "line" else problem


def _shipped_text() -> str:
    return (resources.files("logprobe.alerts.rules") / rule_file.SHIPPED).read_text(encoding="utf-8")


def _fingerprint(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _replace(file: Path, text: str) -> None:
    """The file with this content, or as it was; with the permissions it had. Raises `ConfigurationError`."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            written.write(text)
            written.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(name).replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error}") from error


def _word(document: Document, name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name!r} is missing")
    return value.strip()
