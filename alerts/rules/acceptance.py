"""Acceptance of findings by users or by the policy of the data directory, stored and audited.

An accepted finding stays visible. It neither alarms nor forbids a correction until it exceeds the accepted size; see
`logprobe.monitor.judging.judgement`. Repeating an action has no further effect. The section ``accepted`` of the
settings accepts findings in many runs:

accepted:
  - match: "prod-*"        # pattern of the run's name
    cause: low_precision
    because: bf16 by choice
    up_to: 3e-3            # K3 that the cause may explain; without it: twice what it explains in the run's first steps
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypedDict

from pydantic import AfterValidator, BeforeValidator, StringConstraints, TypeAdapter

from logprobe.alerts import audit
from logprobe.alerts.reloading import Reloaded
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.judging.accepted import explained
from logprobe.monitor.judging.judgement import MARGIN
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Job, Part, Progress
from logprobe.monitor.settings import located, settings_file
from logprobe.monitor.store.store import Store

SECTION: Final = "accepted"


def known_cause(name: str) -> str:
    """Return `name` if it is a cause of the diagnosis. Raise `ConfigurationError` otherwise."""
    if name not in SIGNATURES:
        raise ConfigurationError(f"unknown cause {name!r}; {located.instead(name, tuple(SIGNATURES))}")
    return name


def limit(value: Any) -> float | None:
    """Return K3 as a number. YAML reads 3e-3 as text, for lack of a point. Raise `ConfigurationError`."""
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool | Mapping) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigurationError(f"`up_to`: {value!r} is not a K3 in nats; write a number above 0, such as 3e-3")
    return number


_Word: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Accepted(settings_file.Settings):
    """Policy entry that accepts a finding in matching runs."""

    match: _Word
    """pattern of run names; the last matching entry applies"""
    cause: Annotated[_Word, AfterValidator(known_cause)]
    """cause of the finding, such as low_precision"""
    because: _Word
    """reason"""
    up_to: Annotated[float | None, BeforeValidator(limit)] = None
    """K3 in nats that it may explain; default: twice what it explains in the run's first steps"""


_KIND: Final = TypeAdapter(tuple[Accepted, ...])


def of_run(entries: tuple[Accepted, ...], run: str) -> dict[str, Accepted]:
    """Return the entries of a run by cause. The last matching entry counts."""
    return {entry.cause: entry for entry in entries if fnmatchcase(run, entry.match)}


def load(home: Path) -> tuple[Accepted, ...]:
    """Return the entries of a data directory. Raise `ConfigurationError` with file and line."""
    return settings_file.read(home, SECTION, _KIND, ())


ACCEPT: Final = "diagnosis.accept"
WITHDRAW: Final = "diagnosis.withdraw"
SECONDS: Final = 1.0
_POLICY: Final = f"the home's {settings_file.FILE}"
_SOURCES: Final = ("command", "page")


def acceptance_part(store: Store, _: threading.Event) -> Part:
    """Return acceptances as a part of the service. Raise `ConfigurationError` for an invalid section `accepted`.

    Changed settings are read again. Invalid settings are not applied, and the job reports them.
    """
    home = store.home.path
    entries = Reloaded(home, SECTION, lambda: load(home))

    def work() -> Progress:
        return {**follow(store, entries.current(), store.time.now()), **entries.report()}

    return Part(jobs=[Job("acceptances", SECONDS, work)], actions=actions.offered(ACTIONS, store))


def follow(store: Store, entries: tuple[Accepted, ...], now: datetime) -> dict[str, int]:
    """Store the policy of `entries` for all runs and return the numbers of changes. Raise `StoreError`."""
    stored: dict[tuple[str, str], Mapping[str, Any]] = {
        (row["run"], row["cause"]): row for row in queries.acceptances_policy(store.kept).to_pylist()
    }
    known = queries.runs_now(store.kept_records).to_pylist() if entries else []
    runs = [row["run"] for row in known if row["step"] is not None]
    wanted = {(run, cause): entry for run in runs for cause, entry in of_run(entries, run).items()}
    gone = [key for key, row in stored.items() if key not in wanted or not _says(wanted[key], row)]
    new = [key for key, entry in wanted.items() if key not in stored or not _says(entry, stored[key])]
    if gone or new:
        with store.transaction() as cursor:
            for run, cause in gone:
                _end(store, cursor, run, cause, author=_POLICY, policy=True, now=now)
            for run, cause in new:
                entry = wanted[run, cause]
                facts = {
                    "because": entry.because,
                    "up_to": entry.up_to,
                    "was": None,
                    "author": _POLICY,
                    "source": "policy",
                }
                _write(store, cursor, now, {"run": run, "cause": cause, **facts})
    return {"accepted": len(new), "withdrawn": len(gone)}


def _says(entry: Accepted, row: Mapping[str, Any]) -> bool:
    return bool((entry.because, entry.up_to) == (row["because"], row["up_to"]))


class Accepting(TypedDict):
    """An accepted finding. `up_to`: limit of K3, or None if unknown."""

    run: str
    cause: str
    up_to: float | None


def _accept(store: Store, document: Mapping[str, Any], now: datetime) -> Accepting:
    """Accept a cause in a run: ``{"run", "cause", "because", "up_to": K3 or null, "author", "source": "command" |
    "page"}``."""
    run, because, author = (actions.text(document, name) for name in ("run", "because", "author"))
    cause, up_to = known_cause(actions.text(document, "cause")), limit(document.get("up_to"))
    source = document.get("source") if document.get("source") in _SOURCES else "command"
    was = _explained(store, run, cause)
    if was is None and up_to is None:
        raise ConfigurationError(
            f"{cause} is not found in {run} now, so its size is unknown; pass the K3 to accept (--up-to 3e-3)"
        )
    facts = {"because": because, "up_to": up_to, "was": was, "author": author, "source": source}
    with store.transaction() as cursor:
        if not _stands(store, run, cause, facts):
            store.execute(cursor, "acceptances_withdraw", run=run, cause=cause, author=author, policy=False, now=now)
            _write(store, cursor, now, {"run": run, "cause": cause, **facts})
    return {"run": run, "cause": cause, "up_to": up_to if up_to is not None or was is None else MARGIN * was}


def _stands(store: Store, run: str, cause: str, facts: Mapping[str, Any]) -> bool:
    """Return whether the same acceptance exists already. A repeated request changes nothing."""
    same = ["because", "up_to", "author", "source"]
    accepted = queries.acceptances_read(store, run=run).select(["cause", *same]).to_pylist()
    return {"cause": cause, **{name: facts[name] for name in same}} in accepted


def _withdraw(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """Withdraw an acceptance: ``{"run", "cause", "author"}``."""
    run, cause, author = (actions.text(document, name) for name in ("run", "cause", "author"))
    rows = [row for row in queries.acceptances_read(store, run=run).to_pylist() if row["cause"] == cause]
    if not rows:
        raise ConfigurationError(
            f"{cause!r} is not accepted in run {run!r}; `logprobe alerts accept {run}` lists what is"
        )
    if rows[0]["source"] == "policy":
        raise ConfigurationError(f"{cause} is accepted by {_POLICY}; change it there")
    with store.transaction() as cursor:
        _end(store, cursor, run, cause, author=author, policy=False, now=now)
    return {"run": run, "cause": cause}


def _explained(store: Store, run: str, cause: str) -> float | None:
    """Return the K3 that the cause explains by the newest diagnosis. Raise `ConfigurationError` for an unknown run."""
    if run not in queries.app_runs(store)["run"].to_pylist():
        raise ConfigurationError(f"no run {run!r} in this home; `logprobe runs` lists them")
    rows = queries.diagnosis_latest(store, run=run).to_pylist()
    return explained(json.loads(rows[0]["document"]), cause) if rows else None


def _write(store: Store, cursor: Any, now: datetime, facts: Mapping[str, Any]) -> None:
    store.execute(cursor, "acceptances_write", now=now, **facts)
    up_to = "" if facts["up_to"] is None else f", up to K3 {facts['up_to']:.2g}"
    words = f"{facts['because']}{up_to}"
    subject = f"{facts['run']}/{facts['cause']}"
    audit.note(store, cursor, now, author=facts["author"], action="finding accepted", subject=subject, words=words)


def _end(store: Store, cursor: Any, run: str, cause: str, *, author: str, policy: bool, now: datetime) -> None:
    store.execute(cursor, "acceptances_withdraw", run=run, cause=cause, author=author, policy=policy, now=now)
    words = "alerts and vetoes again"
    audit.note(store, cursor, now, author=author, action="acceptance withdrawn", subject=f"{run}/{cause}", words=words)


ACTIONS: Final[actions.Actions] = {
    ACCEPT: ("accept a finding of a run, up to a size", _accept),
    WITHDRAW: ("withdraw an acceptance", _withdraw),
}
