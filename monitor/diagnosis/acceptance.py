"""What people have accepted: a cause that stays visible, and neither alarms nor vetoes until it exceeds what was accepted.

Pure data and one rule; where acceptances are kept, and who may add them, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

AcceptedBy = Literal["command", "policy", "page"]

MARGIN: Final = 2.0  # times what a cause explained when it was accepted, where no limit was given


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One cause that somebody lives with.

    Attributes:
        cause: identifier, see `logprobe.monitor.diagnosis.causes`.
        because: the reason, in the words of who accepted it.
        up_to: K3 that the cause may explain (absolute); None: `MARGIN` times what it explained when it was accepted.
        by: who accepted it; None: not known.
        at: when, ISO 8601 in UTC; None: not known.
        source: where it was said.
        was: K3 that the cause explained when it was accepted; None: not known then, as in a policy for runs to come.
    """

    cause: str
    because: str
    up_to: float | None = None
    by: str | None = None
    at: str | None = None
    source: AcceptedBy = "command"
    was: float | None = None

    def limit(self, first: float | None = None) -> float | None:
        """K3 up to which the cause is accepted; None: without limit.

        Args:
            first: K3 that it explained in the run's first steps: the reference where neither a limit nor `was` is known.

        >>> Acceptance("low_precision", "bf16 by choice", was=1e-3).limit()
        0.002
        """
        if self.up_to is not None:
            return self.up_to
        reference = self.was if self.was is not None else first
        return None if reference is None else MARGIN * reference

    def document(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "because": self.because,
            "up_to": self.up_to,
            "was": self.was,
            "by": self.by,
            "at": self.at,
            "source": self.source,
        }
