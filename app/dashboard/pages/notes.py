"""What people say of a run, on its Overview: tags, owner and notes, noted and taken back as `logprobe note` does it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from logprobe.alerts.annotation import ANNOTATE, LONGEST
from logprobe.app.dashboard.elements.blocks import BY, Block, action, heading, row, table
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said, token_form
from logprobe.app.dashboard.views.page import report
from logprobe.app.dashboard.views.session import feed, kept
from logprobe.app.text.numbers import when
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries

_HEAD: Final = ("what", "step", "words", "by", "UTC")
_STEP: Final = re.compile(r"-?\d{1,18}")
_WORDS: Final = {
    "note": "Notes something about the run, or about one of its steps, which charts then mark.",
    "tag": "Tags the run; *Runs* searches and groups by tags.",
    "owner": "Sets who takes care of the run, in place of who did.",
}


def notes_blocks(rows: Sequence[Mapping[str, Any]], blocked: str) -> list[Block]:
    """Blocks of `browser/report.js`. `rows`: of `annotation_list`; `blocked`: why nothing can be done from this page;
    "": it can."""
    return [
        heading("Notes", "tags, owner and notes, also by `logprobe note`; the audit has each change"),
        table("notes", _HEAD, [_line(note, blocked) for note in rows], empty="Nothing is noted.", fold=True),
        {"type": "actions", "actions": [_add(kind, blocked) for kind in _WORDS]},
    ]


def _line(note: Mapping[str, Any], blocked: str) -> Block:
    step = "–" if note["step"] is None else f"{note['step']:,}"
    args = {name: note[name] for name in ("kind", "words", "step")}
    remove = action("remove", "Remove", f"Takes the {note['kind']} back; the audit keeps it.", blocked, args=args)
    return row([note["kind"], step, note["words"], note["author"], when(note["time"])], actions=[remove])


def _add(kind: str, blocked: str) -> Block:
    words: Block = {"name": "words", "label": kind, "required": True, "longest": LONGEST[kind]}
    step: Block = {"name": "step", "label": "step (empty: about the run)"}
    fields = [words, *([step] if kind == "note" else []), BY]
    return action(
        "add",
        f"Add a {kind}" if kind != "owner" else "Set the owner",
        _WORDS[kind],
        blocked,
        args={"kind": kind},
        fields=fields,
    )


def document(wanted: Mapping[str, Any], run: str) -> dict[str, object]:
    """What was confirmed, as the service takes it. Raises `ConfigurationError` for a step that is none."""
    step, words = wanted.get("step"), wanted.get("words", "")
    removes = wanted["id"] == "remove"
    if isinstance(step, str):
        step = _number(step.strip())
    if not removes:
        words = words.strip()
    return {
        "run": run,
        "kind": wanted["kind"],
        "words": words,
        "step": step,
        "author": str(wanted.get("by", "")).strip(),
        "remove": removes,
    }


def _number(text: str) -> int | None:
    if text and not _STEP.fullmatch(text):
        raise ConfigurationError(f"step {text!r} is not a whole number; leave it empty for a note about the run")
    return int(text) if text else None


def notes(run: str) -> None:
    """Draws them, and the form."""
    token_form()
    place = f"notes {run}"
    rows = kept(place, lambda: queries.annotation_list(feed(), run=run).to_pylist())
    if rows is not None:
        wanted = report("notes", "notes", [*said(place), *notes_blocks(rows, blocked(run))])
        attempt(place, wanted, lambda wanted: _do(wanted, run))


def _do(wanted: Mapping[str, Any], run: str) -> str:
    """Does what was confirmed; → what came of it."""
    given = document(wanted, run)
    done: str = ask(ANNOTATE, given)["done"]
    return f"{done[:1].upper()}{done[1:]}: {given['words']}"
