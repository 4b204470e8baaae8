"""A judgement in words, with the same headline on pages, in tables and on the command line. The functions are pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logprobe.monitor.judgement import Judgement, Severity
from logprobe.monitor.judging.growth_rule import RULE

VERDICTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "healthy": ("✓", "Healthy", "No finding calls for action."),
    "watch": ("!", "Watch", "Something is off, and it does not grow."),
    "unknown": ("≈", "Unknown", "Nothing shows that the run is healthy, and no test names a cause."),
    "growing": ("▲", "Growing", "The mismatch grows."),
    "critical": ("✕", "Critical", "The mismatch endangers training."),
    "calibrating": ("…", "Calibrating", "Too few steps for a baseline."),
    "no_data": ("?", "No data", "There is nothing to compare."),
}
WAITING: Final = ("…", "Not diagnosed yet", "The first diagnosis follows shortly.")
_LEVELS: Final = {"above": "above normal", "far above": "far above normal"}
_WAS: Final = {"healthy": "The verdict was healthy", "no_data": "There was nothing to compare"}
SIGNS: Final[Mapping[Severity, tuple[str, str]]] = {
    "critical": ("✕", "Critical"),
    "warning": ("▲", "Warning"),
    "unknown": ("?", "Unknown"),
    "ok": ("✓", "Healthy"),
}


@dataclass(frozen=True, slots=True)
class Headline:
    """First line about a run. `tone`: severity that determines its colour."""

    icon: str
    word: str
    words: str
    tone: str


def headline(judgement: Judgement) -> Headline:
    """Return severity and verdict as one statement, with exactly the severity of `Judgement.severity`."""
    if judgement.by_alert:
        icon, word = SIGNS[judgement.severity]
        return Headline(icon, word, _by_alert(judgement), judgement.severity)
    if judgement.verdict is None:
        return Headline(*WAITING, "unknown")
    if judgement.verdict == "calibrating":
        return _short(judgement)
    icon, word, words = VERDICTS[judgement.verdict]
    if (
        judgement.verdict in _WAS
        and judgement.severity == "unknown"
        and (judgement.outdated or judgement.verdict == "healthy")
    ):
        since = _WAS[judgement.verdict] + (f" as of step {judgement.step:,}" if judgement.step is not None else "")
        reason = _unjudged(judgement)
        return Headline(SIGNS["unknown"][0], "Not judged", f"{since}; {reason}.", "unknown")
    if judgement.verdict == "watch" and judgement.level is not None:
        words = "Something is off; too few steps say whether it grows."
    return Headline(icon, word, words, "warning" if judgement.verdict == "watch" else judgement.verdict)


def _short(judgement: Judgement) -> Headline:
    """Return the headline of a run without a baseline, with its level and the unknown trend."""
    icon, word, _ = VERDICTS["calibrating"]
    steps = f"{RULE.calibrate_to:,} steps"
    if judgement.ended_after is not None:
        icon, word = SIGNS["unknown"][0], "Too short"
        unknown = f"no trend, as it ended after {judgement.ended_after:,} of {steps}"
    else:
        unknown = f"whether it grows is not known before {steps}"
    if judgement.level == "as expected" and judgement.cause is None:
        return Headline(icon, "OK so far", f"K3 is normal for this setup; {unknown}.", "calibrating")
    if judgement.level in _LEVELS:
        return Headline(icon, word, f"K3 is {_LEVELS[judgement.level]} for this setup; {unknown}.", "calibrating")
    return Headline(
        icon, word, f"{unknown[0].upper()}{unknown[1:]}.", "unknown" if word == "Too short" else "calibrating"
    )


def _unjudged(judgement: Judgement) -> str:
    """Return the reason why a healthy verdict does not apply."""
    if judgement.spooled and not judgement.behind:
        return f"newer records have waited in the spool for {judgement.spooled:,.0f} s"
    return "newer steps wait for a diagnosis" if judgement.overdue else "an alert has begun to fire since"


def _by_alert(judgement: Judgement) -> str:
    rules = [alert.rule for alert in judgement.alerts if alert.counts and alert.severity == judgement.worst]
    others = "" if len(rules) == 1 else f" and {len(rules) - 1} more"
    fires = f"The alert {rules[0]}{others} fires"
    if judgement.verdict is None:
        return f"{fires}; the run has not been diagnosed yet."
    before = f"the diagnosis as of step {judgement.step:,}" if judgement.step is not None else "the diagnosis"
    verdict = VERDICTS[judgement.verdict][1].lower()
    return f"{fires}; {before}{', before that,' if judgement.outdated else ''} says: {verdict}."


def word(judgement: Judgement) -> str:
    """Return the headline's word alone.

    >>> word(Judgement(verdict="healthy", step=3, newest=3))
    'Healthy'
    """
    return headline(judgement).word


def line(judgement: Judgement) -> str:
    """Return the judgement in one line, for terminals and messages."""
    shown = headline(judgement)
    parts = [shown.word]
    if judgement.since is not None:
        parts.append(f"since step {judgement.since}")
    if why := cause(judgement):
        parts.append(why)
    return f"{', '.join(parts)}. {shown.words}{f' {late}.' if (late := lateness(judgement)) else ''}"


def as_document(judgement: Judgement) -> Mapping[str, object]:
    """Return the judgement in the form of `--json`."""
    return judgement.document() | {"words": line(judgement)}


def cause(judgement: Judgement) -> str:
    """Return the leading finding or the firing alert in a few words, or "" if neither exists."""
    if judgement.severity not in {"critical", "warning"}:
        return ""
    if judgement.cause is not None:
        return judgement.cause.replace("_", " ")
    return next((alert.rule for alert in judgement.alerts if alert.counts), "")


def lateness(judgement: Judgement) -> str:
    """State that the verdict is overdue, or return "" if it is not."""
    return (
        f"Newer steps than {judgement.step:,} are not judged yet"
        if judgement.overdue and judgement.step is not None
        else ""
    )
