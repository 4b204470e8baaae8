"""How a run stands, on its way into other people's dashboards beside its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "logprobe/"
ALARMING: Final = ("critical", "warning")


@dataclass(frozen=True, slots=True)
class Standing:
    """The judgement of a run in words.

    Attributes:
        severity: "critical", "warning", "unknown" or "ok".
        verdict: of the diagnosis; None: there is none yet.
        cause: the finding that leads, or the alert that fires; "": nothing is wrong, or nothing explains it.
        since_step: where the trouble began; None: nothing is wrong, or not known.
        words: all of it in a sentence.
        link: to the run's page; None: there is no dashboard, or its address is not known.
        step: as of which step; None: none is judged.
    """

    severity: str
    verdict: str | None
    cause: str
    since_step: int | None
    words: str
    link: str | None = None
    step: int | None = None

    @property
    def essence(self) -> tuple[object, ...]:
        """What makes it another standing; steps go on and numbers move."""
        return self.severity, self.verdict, self.cause, self.since_step

    @property
    def tag(self) -> str:
        """One word to filter runs by."""
        return f"logprobe:{self.severity}"

    def summary(self) -> dict[str, str | int | None]:
        """By the names that targets show; what is not known is null."""
        return {
            f"{PREFIX}severity": self.severity,
            f"{PREFIX}verdict": self.verdict,
            f"{PREFIX}cause": self.cause or None,
            f"{PREFIX}since_step": self.since_step,
            f"{PREFIX}words": self.words,
            f"{PREFIX}link": self.link,
        }

    def alerts_after(self, before: str | None) -> bool:
        """Whether people are to be told, where the severity was `before` (None: not known): it became worse, or is
        alarming at first."""
        order = ("critical", "warning", "unknown", "ok")
        if self.severity not in ALARMING:
            return False
        return before not in order or order.index(self.severity) < order.index(before)

    @property
    def text(self) -> str:
        """Of an alert."""
        return self.words if self.link is None else f"{self.words}\n{self.link}"
