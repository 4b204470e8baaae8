"""Standing of a run's correction: on or off, since which step, and its effect."""

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
    """Statements of the controller about one run.

    Attributes:
        phase: as `logprobe.alerts.controller.situation.Phase` names it.
        from_step: first corrected step of the newest directive; None: there was none.
        config: of that directive, as `CorrectionConfig.to_dict` gives it.
        stopped: whether the kill switch is set.
        effect: what `effect.judge` found since `from_step`; None: not judged yet.
        judged_at: step as of which it was judged.
        waiting: why a bad verdict has led to no correction, as of the controller's last look; None: it has, or calls
            for none.
        objection: `Refusal.reason` behind that; None: nothing speaks against a correction.
        ended: how the newest correction ended, as the audit says it; None: it is on, or there was none.
        applied_from: first step that the trainer corrected with that configuration; None: not acknowledged.
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
        """Return whether the trainer was told to correct, and no kill switch is set."""
        return self.phase in {"issued", "applied"} and not self.stopped

    @property
    def applied(self) -> bool:
        """Return whether the trainer says that it corrects."""
        return self.on and self.phase == "applied"

    @classmethod
    def read(cls, source: Source, run: str) -> Self:
        """Read it from a service, a store or a file. Raise `QueryError` as the source does."""
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
    """Return the action that says whether the correction from step `first` on helped, or None if it is not judged yet.
    `actions`: the audit."""
    return next((action for action in reversed(actions) if action["name"] == "effect" and _since(action, first)), None)


def _since(action: Mapping[str, Any], first: int | None) -> bool:
    """Return whether an action is about the correction that began at step `first`, not an earlier one."""
    return first is not None and action["step"] is not None and action["step"] >= first
