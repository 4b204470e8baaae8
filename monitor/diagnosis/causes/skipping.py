"""Updates that an engine missed now and then, while later ones arrived: how sure that is by what tells it, and what is
left unknown."""

from __future__ import annotations

from typing import Final

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, POSSIBLE, Sign
from logprobe.monitor.diagnosis.causes.updates import not_in_flight
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.skipped import Skipped, skipped

_SURE: Final = {"fingerprints": CERTAIN, "loads": KNOWN, "rounding": INFERRED, "phase": POSSIBLE}
_LABELLED: Final = "although the engine says that it has the trainer's weights: it missed those updates"
_UNLABELLED: Final = (
    "and the version of their tokens is not known: the engine missed those updates, or these batches were sampled by "
    "older weights"
)


def missed_now_and_then(evidence: Evidence) -> Sign | None:
    """Steps or versions that differ from those around them, as far as that can be put down to the engine's weights."""
    missed = skipped(evidence)
    if missed is None or (missed.told_by == "phase" and not evidence.versions_known):
        return None  # where no version is known, a lag of its own in every few steps looks the same
    told = missed.told_by != "rounding" or evidence.versions_known
    return Sign(
        _SURE[missed.told_by] if told else POSSIBLE,
        min(missed.excess, not_in_flight(evidence)),
        {
            "told_by": missed.told_by,
            "missed": len(missed.odd),
            "others": missed.others,
            "every": missed.every,
            "k3_ratio": missed.ratio,
            "z": missed.z,
        },
        _words(missed, _LABELLED if told else _UNLABELLED),
        since_step=missed.since,
    )


def _words(missed: Skipped, labelled: str) -> str:
    count, whole = len(missed.odd), len(missed.odd) + missed.others
    more = f"{missed.ratio:.3g} times that of the ones around them ({missed.z:.0f} standard errors)"
    if missed.told_by == "fingerprints":
        return (
            f"At {count} of {whole} weight versions the engine had the weights of another, by their fingerprints, and "
            f"K3 of their tokens is {more}: "
            "it missed those updates."
        )
    if missed.told_by == "loads":
        return (
            f"At {count} of {whole} weight versions the engine got the label and, as far as was seen, no weights, and "
            f"K3 of their tokens is {more}: "
            "it missed those updates."
        )
    if missed.told_by == "rounding":
        return f"Engine and trainer agree to rounding, but for {_steps(missed)}, {labelled}."
    return (
        f"K3 of {_steps(missed)} is {more}, and nothing else about its tokens is different. The updates before them "
        "may "
        "have been missed, or those batches are other tasks: fingerprints of the weights tell which."
    )


def _steps(missed: Skipped) -> str:
    count = len(missed.odd)
    return f"every {ordinal(missed.every)} step" if missed.every else f"{count} of {count + missed.others} steps"


def ordinal(number: int) -> str:
    """In words of a text.

    >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd']
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else ends.get(number % 10, 'th')}"
