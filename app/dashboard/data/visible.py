"""Which steps of a run are looked at: those that the address names (`steps=300:500`), or all. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from logprobe.app.dashboard.data.series import Steps

_RANGE: Final = re.compile(r"(\d{1,18}):(\d{1,18})")
_TENTH: Final = 10


@dataclass(frozen=True)
class Visible:
    """Steps `first` to `last`, both included.

    Attributes:
        first: the first one.
        last: the last one.
        whole: no one chose less than all there are: the range grows with the run.
        part: which part of what was chosen this is; "": all of it.
    """

    first: int
    last: int
    whole: bool = True
    part: str = ""

    @property
    def key(self) -> tuple[str, int | None, int | None]:
        """What was asked for: the same while a run that is looked at as a whole continues."""
        return (self.part, None, None) if self.whole else (self.part, self.first, self.last)

    @property
    def words(self) -> str:
        """As people read it."""
        return f"steps {self.first:,}–{self.last:,}" if self.first < self.last else f"step {self.first:,}"


def visible(asked: str | None, steps: Steps) -> Visible:
    """The range that `asked` names, no wider than the run; all of it for what is not a range, or has no step.

    Args:
        asked: ``A:B``; None: nothing was chosen.
        steps: of the run, ascending, at least one.
    """
    whole = Visible(int(steps[0]), int(steps[-1]))
    match = _RANGE.fullmatch(asked or "")
    if match is None:
        return whole
    first, last = max(int(match[1]), whole.first), min(int(match[2]), whole.last)
    if (first, last) == (whole.first, whole.last) or not ((steps >= first) & (steps <= last)).any():
        return whole
    return Visible(first, last, whole=False)


def ends(seen: Visible, steps: Steps) -> tuple[Visible, Visible]:
    """The first and the last tenth of the steps in view, one step at least."""
    inside = steps[(steps >= seen.first) & (steps <= seen.last)]
    count = max(1, len(inside) // _TENTH)
    first, last = inside[:count], inside[-count:]
    return (
        Visible(int(first[0]), int(first[-1]), seen.whole, "first tenth"),
        Visible(int(last[0]), int(last[-1]), seen.whole, "last tenth"),
    )
