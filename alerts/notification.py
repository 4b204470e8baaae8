"""Notification of one transition of one alert, serializable as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Final, Self

CLOSED: Final = "closed"  # state of the notification that a critical period is over
CONTROLLER: Final = "correction_controller"  # rule of notifications about a correction
UNDELIVERED: Final = "undelivered"  # rule of notifications that a channel gave another one up


@dataclass(frozen=True, slots=True)
class Notification:
    """One transition of one episode of an alert. Unknown is None.

    Attributes:
        key: idempotency key, unique per transition of an episode and stable when it is evaluated again.
        run: name of the run.
        rule: name of the rule.
        episode: one firing of the rule, from its first to its last transition. Messages of an episode without an
            incident share a thread.
        state: ``firing``, ``changed``, ``acknowledged``, ``resolved``, ``closed`` (of an incident), or an action of the
            controller.
        severity: ``info``, ``warning`` or ``critical``, the worst of the episode. It selects the channels.
        level: present severity, or "" once resolved.
        step: training step of the transition.
        at: time of the transition, with a time zone.
        metric: catalog key of the judged metric.
        value: value of the metric at `step`, in `unit`.
        unit: unit of `value` in the notation of the catalog.
        since_step: first step at which the condition held.
        summary: description of the event in one or two sentences.
        layer: ``semantic``, ``inference_path``, ``objective`` or ``unknown``.
        cause: name of the diagnosis.
        fix: recommended remedy.
        more: command that shows details.
        changes: preceding changes, such as a weight sync, a new configuration or a restart.
        link: URL of the page of that step or incident.
        run_severity: severity of the whole run after this transition, see `logprobe.monitor.judgement`.
        incident: incident of the alert, whose messages share a thread, or None.
        grouped: firing alerts of the run after this transition, one line each.
        undelivered: channel that abandoned a message, in a notification of that event.
    """

    key: str
    run: str
    rule: str
    episode: str
    state: str
    severity: str
    at: datetime
    summary: str
    level: str = ""
    step: int | None = None
    metric: str | None = None
    value: float | None = None
    unit: str | None = None
    since_step: int | None = None
    layer: str | None = None
    cause: str | None = None
    fix: str | None = None
    more: str | None = None
    changes: tuple[str, ...] = ()
    link: str | None = None
    run_severity: str | None = None
    incident: str | None = None
    grouped: tuple[str, ...] = ()
    undelivered: str | None = None

    def document(self) -> dict[str, object]:
        """Return JSON-compatible values, with times in ISO 8601 and non-finite numbers as "nan", "inf" or "-inf"."""
        value = self.value if self.value is None or math.isfinite(self.value) else str(float(self.value))
        changed = {"at": self.at.isoformat(), "value": value}
        return asdict(self) | changed | {"changes": list(self.changes), "grouped": list(self.grouped)}

    def to_json(self) -> str:
        """Return one line of JSON, from which `from_json` restores an equal notification."""
        return json.dumps(self.document(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the notification that `to_json` wrote. Ignore fields of a newer logprobe.

        Raises:
            KeyError, ValueError: the text is not a notification.
        """
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in json.loads(text).items() if name in names}
        given["value"] = None if given.get("value") is None else float(given["value"])
        given["at"] = datetime.fromisoformat(given["at"])
        given |= {name: tuple(given.get(name, ())) for name in ("changes", "grouped")}
        return cls(**given)
