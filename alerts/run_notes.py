"""What people say of runs: tags, an owner, notes. Asked of the running service, or done directly.

Noted twice is noted once; what is not there cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from logprobe.alerts import audit
from logprobe.alerts.annotation import ANNOTATE, LONGEST
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.store import Store

_DONE: Final = {"tag": "tagged", "owner": "owner set", "note": "noted"}
_UNDONE: Final = {"tag": "tag removed", "owner": "owner removed", "note": "note removed"}


def _annotate(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"run": …, "kind": "tag"|"owner"|"note", "words": …, "step": …, "author": …, "remove": false}``; removed
    without ``step``: at any."""
    run, kind = actions.run_of(document), actions.text(document, "kind")
    words, author = actions.text(document, "words"), actions.text(document, "author")
    if kind not in LONGEST:
        raise ConfigurationError(f"kind {kind!r} does not exist; write one of {', '.join(LONGEST)}")
    if len(words) > LONGEST[kind]:
        raise ConfigurationError(f"{kind}: {len(words):,} characters; the longest has {LONGEST[kind]:,}")
    if run not in queries.app_runs(store)["run"].to_pylist():
        raise ConfigurationError(f"no run {run!r}; `logprobe runs` lists them")
    step = _step(document) if kind == "note" else None
    remove = bool(document.get("remove"))
    anywhere = "step" not in document or kind != "note"
    at = "" if step is None else f" at step {step:,}"
    held = queries.annotation_list(store, run=run).to_pylist() if remove else []
    if remove and not any(
        (row["kind"], row["words"]) == (kind, words) and (anywhere or step == row["step"]) for row in held
    ):
        raise ConfigurationError(f"{run} has no {kind} {words!r}{at}; `logprobe note {run}` lists what is noted")
    with store.transaction() as cursor:
        if remove or kind == "owner":  # a run has one owner
            removed = words if remove else None  # None: whatever it is
            store.execute(
                cursor, "annotation_remove", run=run, kind=kind, words=removed, step=step, anywhere=anywhere, now=now
            )
        if not remove:
            store.execute(cursor, "annotation_add", run=run, kind=kind, step=step, words=words, author=author, now=now)
        done = (_UNDONE if remove else _DONE)[kind] + at
        audit.note(store, cursor, now, author=author, action=done, subject=run, words=words)
    return {"run": run, "done": done}


def _step(document: Mapping[str, Any]) -> int | None:
    """Raises `ConfigurationError` for what is no step."""
    step = document.get("step")
    if step is not None and (type(step) is not int or not -(2**63) <= step < 2**63):
        raise ConfigurationError(f"step {step!r} is not a whole number")
    return step


ACTIONS: Final[actions.Actions] = {ANNOTATE: ("tag a run, set its owner, or add a note", _annotate)}


def part(store: Store, *_: object) -> Part:
    """Annotations as a part of the service."""
    return Part(actions=actions.offered(ACTIONS, store))
