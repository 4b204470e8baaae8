"""State of a run's correction: phase, first step and effect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from logprobe.alerts.controller.situation import Phase
from logprobe.monitor import queries
from logprobe.monitor.queries import Source

_ENDS: Final = frozenset({"rolled_back", "switched_off"})


@dataclass(frozen=True, slots=True)
class Standing:
    """State of the correction of one run, as reported by the controller.

    Attributes:
        phase: a value of `logprobe.alerts.controller.situation.Phase`.
        from_step: first corrected step of the newest directive, or None without a directive.
        config: configuration of that directive, in the form of `CorrectionConfig.to_dict`.
        stopped: true if the kill switch is set.
        effect: result of `effect.judge` since `from_step`, or None before a judgement.
        judged_at: step of the judgement.
        waiting: reason why a bad verdict led to no correction at the controller's last look, or None.
        objection: `Refusal.reason` of `waiting`, or None if no reason opposes a correction.
        ended: end of the newest correction according to the audit, or None if it is on or absent.
        applied_from: first step that the trainer corrected with that configuration, or None before an acknowledgement.
    """

    phase: str = "idle"
    from_step: int | None = None
    config: Mapping[str, Any] | None = None
    stopped: bool = False
    effect: Mapping[str, Any] | None = None
    judged_at: int | None = None
    ended: str | None = None
    waiting: str | None = None
    objection: str | None = None
    applied_from: int | None = None

    @property
    def on(self) -> bool:
        """Return whether the trainer has an order to correct and the kill switch is not set."""
        return self.phase in {"issued", "applied"} and not self.stopped

    @property
    def applied(self) -> bool:
        """Return whether the trainer reports that it corrects."""
        return self.on and self.phase == "applied"

    @classmethod
    def read(cls, source: Source, run: str) -> Self:
        """Read the state from a service, a store or a file. Raise `QueryError` as the source does."""
        rows = queries.controller_read(source, runs=[run]).to_pylist()
        if not rows:
            return cls()
        control = json.loads(rows[0]["control"])
        actions = queries.controller_actions(source, run=run).to_pylist()
        since = [action for action in actions if _since(action, control.get("from_step"))]
        judged = judgement(actions, control.get("from_step"))
        ended = [action for action in since if action["name"] in _ENDS]
        return cls(
            phase=control["phase"],
            from_step=control.get("from_step"),
            applied_from=control.get("applied_from"),
            config=control.get("config"),
            stopped=bool(control.get("stopped")),
            effect=None if judged is None else {"words": judged["words"], **json.loads(judged["details"])},
            judged_at=None if judged is None else judged["step"],
            waiting=control.get("waiting"),
            objection=control.get("objection"),
            ended=ended[-1]["words"] if ended and control["phase"] == Phase.WITHDRAWN else None,
        )


def judgement(actions: Sequence[Mapping[str, Any]], first: int | None) -> Mapping[str, Any] | None:
    """Return the action with the judged effect of the correction from step `first` on, or None before it is judged.

    `actions`: the audit.
    """
    return next((action for action in reversed(actions) if action["name"] == "effect" and _since(action, first)), None)


def _since(action: Mapping[str, Any], first: int | None) -> bool:
    """Return whether an action concerns the correction that began at step `first`, not an earlier one."""
    return first is not None and action["step"] is not None and action["step"] >= first
