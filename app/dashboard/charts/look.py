"""What a reader chose of a step chart, as the address has it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from logprobe.app.dashboard.charts.axes import AXES
from logprobe.app.dashboard.charts.downsample import Window
from logprobe.app.dashboard.data.series import Steps
from logprobe.app.dashboard.data.visible import visible

LONGEST: Final = 999  # steps of a smoothed line; beyond that a run has a level, and no trend
SMOOTHINGS: Final = (0, 5, 11, 25, 51, 101)


@dataclass(frozen=True)
class Look:
    """What a reader chose.

    Attributes:
        window: first and last step in view; None: all of the run.
        x: the axis, a key of `AXES`.
        smooth: steps of the centred median; 0: none.
        log: metrics whose axis is to be logarithmic though it usually is not.
        linear: metrics whose axis is to be linear though it usually is not.
        hide: roles whose lines are not drawn.
    """

    window: Window | None = None
    x: str = "step"
    smooth: int = 0
    log: frozenset[str] = frozenset()
    linear: frozenset[str] = frozenset()
    hide: frozenset[str] = frozenset()

    @classmethod
    def of(cls, asked: Callable[[str], str | None], steps: Steps) -> Look:
        """The choice in an address, read by name; `steps` of the first run, ascending, at least one."""
        seen, smooth, x = visible(asked("steps"), steps), asked("smooth") or "", asked("x") or ""
        log, linear, hide = (
            frozenset(filter(None, (asked(name) or "").split(","))) for name in ("log", "linear", "hide")
        )
        return cls(
            window=None if seen.whole else (float(seen.first), float(seen.last)),
            x=x if x in AXES else "step",
            smooth=min(int(smooth), LONGEST) if smooth.isascii() and smooth.isdecimal() and int(smooth) > 1 else 0,
            log=log, linear=linear, hide=hide,
        )  # fmt: skip

    def is_log(self, metric: str, *, usual: bool) -> bool:
        """Whether the axis of a row is logarithmic; `usual`: whether it is where the reader chose nothing."""
        return metric not in self.linear if usual else metric in self.log

    def other_scale(self, metric: str, *, usual: bool) -> Mapping[str, str]:
        """What to put into the address to switch the axis of a row."""
        log = not self.is_log(metric, usual=usual)
        return {
            "log": ",".join(sorted((self.log - {metric}) | ({metric} if log and not usual else set()))),
            "linear": ",".join(sorted((self.linear - {metric}) | ({metric} if usual and not log else set()))),
        }

    def switched(self, role: str) -> Mapping[str, str]:
        """What to put into the address to show or hide the lines of a role."""
        return {"hide": ",".join(sorted(self.hide ^ {role}))}
