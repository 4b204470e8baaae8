"""Users' acceptance of findings, stored and audited, in one run or in all whose names match a pattern.

An accepted finding stays visible. It neither alarms nor forbids a correction until it exceeds the accepted size; see
`logprobe.monitor.judging.judgement`. Repeating an action has no further effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.judging.accepted import explained
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.service import actions
from logprobe.monitor.settings import located
from logprobe.monitor.store.store import Store

ACCEPT: Final = "diagnosis.accept"
WITHDRAW: Final = "diagnosis.withdraw"
MARGIN: Final = 2.0  # times what a finding explains now, where no limit is given


class Accepting(TypedDict):
    """An accepted finding. `up_to`: limit of K3."""

    run: str
    cause: str
    up_to: float


def _accept(store: Store, document: Mapping[str, Any], now: datetime) -> Accepting:
    """Accept a cause: ``{"run": name or pattern with a *, "cause", "because", "up_to": K3 or null, "author"}``."""
    run, because, author = (actions.text(document, name) for name in ("run", "because", "author"))
    cause, up_to = _known_cause(actions.text(document, "cause")), _limit(document.get("up_to"))
    known = None if "*" in run else _explained(store, run, cause)
    if up_to is None:
        if known is None:
            raise ConfigurationError(
                f"{cause} is not found in {run} now, so its size is unknown; pass the K3 to accept (--up-to 3e-3)"
            )
        up_to = MARGIN * known
    done: Accepting = {"run": run, "cause": cause, "up_to": up_to}
    facts: dict[str, Any] = {"because": because, "up_to": up_to, "author": author}
    if any(all(row[name] == value for name, value in facts.items()) for row in _standing(store, run, cause)):
        return done
    with store.transaction() as cursor:
        meant: dict[str, Any] = {"runs": run, "what": cause, "up_to": up_to, "words": because}
        actions.note(store, cursor, now, author=author, action="finding accepted", **meant)
    return done


def _withdraw(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """Withdraw an acceptance: ``{"run": as it was accepted, "cause", "author"}``."""
    run, cause, author = (actions.text(document, name) for name in ("run", "cause", "author"))
    if not (rows := _standing(store, run, cause)):
        raise ConfigurationError(f"{cause!r} is not accepted in run {run!r}; `logprobe show {run}` lists what is")
    if (match := rows[0]["match"]) != run:
        raise ConfigurationError(f"{cause} is accepted in all runs {match!r}; withdraw it there")
    with store.transaction() as cursor:
        meant: dict[str, Any] = {"runs": run, "what": cause, "words": "alerts and vetoes again"}
        actions.note(store, cursor, now, author=author, action="acceptance withdrawn", **meant)
    return {"run": run, "cause": cause}


def _standing(store: Store, run: str, cause: str) -> list[Mapping[str, Any]]:
    """Return the acceptance of a cause in a run, if any. A pattern stands for itself."""
    return [row for row in queries.acceptances_read(store, runs=[run]).to_pylist() if row["cause"] == cause]


def _known_cause(name: str) -> str:
    if name not in SIGNATURES:
        raise ConfigurationError(f"unknown cause {name!r}; {located.instead(name, tuple(SIGNATURES))}")
    return name


def _limit(value: Any) -> float | None:
    """Return K3 as a number, which a page sends as text, or None if none is given. Raise `ConfigurationError`."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigurationError(f"{value!r} is not a K3 in nats; write a number above 0, such as 3e-3")
    return number


def _explained(store: Store, run: str, cause: str) -> float | None:
    """Return the K3 that the cause explains by the newest diagnosis. Raise `ConfigurationError` for an unknown run."""
    if run not in queries.app_runs(store)["run"].to_pylist():
        raise ConfigurationError(f"no run {run!r} in this home; `logprobe runs` lists them")
    rows = queries.diagnosis_latest(store, run=run).to_pylist()
    return explained(json.loads(rows[0]["document"]), cause) if rows else None


ACTIONS: Final[actions.Actions] = {
    ACCEPT: ("accept a finding of a run, up to a size", _accept),
    WITHDRAW: ("withdraw an acceptance", _withdraw),
}
