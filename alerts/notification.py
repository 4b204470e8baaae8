"""What an alert has to say: one transition of one episode, as plain data that outlives the process as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Final, Self

CLOSED: Final = "closed"  # the state of the notification that an incident is over
_FLOATS: Final = ("value", "baseline", "doubling_steps")


@dataclass(frozen=True, slots=True)
class Notification:
    """One transition of one episode of an alert. Unknown is None.

    Attributes:
        key: idempotency key, unique per transition of an episode; the same transition evaluated again has the same key.
        run: the run that the alert is about.
        rule: name of the rule.
        episode: names one firing of the rule, from its first to its last transition; messages of an episode that
            belongs to no incident share a thread.
        state: ``firing``, ``acknowledged``, ``resolved``, ``no_data``, ``updated``, ``still_firing``,
            ``closed`` (of an incident), or another word for people.
        severity: ``info``, ``warning`` or ``critical``; decides which channels hear of it.
        step: training step of the transition.
        at: time of the transition, with a time zone.
        metric: catalog key; with `pair` and `slice` the series that was judged.
        pair: ``backend``, ``update`` or ``total``.
        slice: as in ``weight_lag=2``; None: all tokens of the step.
        value: of the metric at `step`, in `unit`.
        unit: as the catalog writes it.
        baseline: what the value is compared with, in `unit`.
        since_step: first step at which the condition held.
        doubling_steps: steps in which the value doubles.
        summary: the verdict in one sentence.
        description: what it means and what to look at, in plain text.
        layer: ``semantic``, ``inference_path`` or ``objective``.
        cause: name of the diagnosis.
        fix: what to do about it.
        changes: what changed shortly before: weight sync, configuration, restart.
        labels: of the rule.
        link: page of that step.
        runbook: page that says what the rule means and what to do.
        series: recent (step, value) of the metric, for a sparkline.
        run_severity: of the run as a whole after this transition, see `logprobe.monitor.judgement`; None: not known.
        incident: that it belongs to, whose messages share a thread; None: to none.
        grouped: alerts that fire in the run after this transition, one line each.
    """

    key: str
    run: str
    rule: str
    episode: str
    state: str
    severity: str
    at: datetime
    summary: str
    step: int | None = None
    metric: str | None = None
    pair: str | None = None
    slice: str | None = None
    value: float | None = None
    unit: str | None = None
    baseline: float | None = None
    since_step: int | None = None
    doubling_steps: float | None = None
    description: str = ""
    layer: str | None = None
    cause: str | None = None
    fix: str | None = None
    changes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    link: str | None = None
    runbook: str | None = None
    series: tuple[tuple[int, float], ...] = ()
    run_severity: str | None = None
    incident: str | None = None
    grouped: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """Values that JSON can hold: times in ISO 8601; a number that is not finite as the string nan, inf or -inf."""
        document = asdict(self) | {"at": self.at.isoformat(), "labels": dict(self.labels)}
        document |= {name: _number(document[name]) for name in _FLOATS}
        document["changes"], document["grouped"] = list(self.changes), list(self.grouped)
        document["series"] = [[step, _number(value)] for step, value in self.series]
        return document

    def to_json(self) -> str:
        """One line of JSON; `from_json` gives an equal notification back."""
        return json.dumps(self.document(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The notification that `to_json` wrote; fields of a newer logprobe are left out. Raises `ValueError`,
        `KeyError`."""
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in json.loads(text).items() if name in names}
        given |= {name: _parsed(given[name]) for name in _FLOATS if name in given}
        given["at"] = datetime.fromisoformat(given["at"])
        given |= {name: tuple(given.get(name, ())) for name in ("changes", "grouped")}
        given["series"] = tuple((step, float(value)) for step, value in given.get("series", ()))
        return cls(**given)


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(float(value))


def _parsed(value: float | str | None) -> float | None:
    return None if value is None else float(value)
