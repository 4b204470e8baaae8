"""State of a run's correction: what the controller remembers and did."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from logprobe.alerts.controller.situation import Control, Phase
from logprobe.monitor import queries
from logprobe.monitor.queries import Source

_ENDS: Final = ("rolled_back", "switched_off")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """State of the correction of one run, as reported by the controller.

    Attributes:
        control: memory of the controller.
        actions: its audit, oldest first: rows of `controller_actions`, with details as data.
    """

    control: Control = field(default_factory=Control)
    actions: Sequence[Row] = ()

    @property
    def on(self) -> bool:
        """Return whether the trainer has an order to correct and the kill switch is not set."""
        return self.control.on and not self.control.stopped

    @property
    def applied(self) -> bool:
        """Return whether the trainer reports that it corrects."""
        return self.on and self.control.phase is Phase.APPLIED

    @property
    def effect(self) -> Row | None:
        """Return the action with the judged effect of the newest correction, or None before it is judged."""
        return self._newest(("effect",))

    @property
    def ended(self) -> str | None:
        """Return the end of the newest correction in words, or None if it is on or absent."""
        end = self._newest(_ENDS) if self.control.phase is Phase.WITHDRAWN else None
        return None if end is None else end["words"]

    def _newest(self, names: Collection[str]) -> Row | None:
        """Return the newest action of these names about the correction that is on or was last, not an earlier one."""
        first = self.control.from_step
        named = (action for action in reversed(self.actions) if action["name"] in names and action["step"] is not None)
        return next((action for action in named if first is not None and action["step"] >= first), None)

    @classmethod
    def read(cls, source: Source, run: str) -> Self:
        """Read the state from a service, a store or a file. Raise `QueryError` as the source does."""
        rows = queries.controller_read(source, runs=[run]).to_pylist()
        actions = queries.controller_actions(source, run=run).to_pylist() if rows else []
        control = Control.parse(json.loads(rows[0]["control"])) if rows else Control()
        return cls(control, [{**action, "details": json.loads(action["details"])} for action in actions])
