"""When a failed delivery is tried again: later each time, with jitter, and not before the channel asks for it."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Final

_FIRST: Final = 2.0  # seconds
_LONGEST: Final = 300.0
_SETUP: Final = 60.0  # a person has to act first, and then wants to see it work
_MOST_DOUBLINGS: Final = 16

GIVE_UP_AFTER: Final = timedelta(hours=24)  # later than that, an alert is history


def pause(attempts: int, reason: str, retry_after: float | None, random: Random) -> timedelta:
    """How long to wait after a failure.

    Args:
        attempts: failed attempts of this delivery so far, at least 1.
        reason: `ChannelError.reason`.
        retry_after: seconds that the channel asked for, if it did.
        random: source of the jitter.

    Returns:
        Between half and all of 2 s · 2^(attempts − 1), at most 5 min; never less than `retry_after`, and up to a second more.
    """
    if retry_after is not None:
        return timedelta(seconds=retry_after + random.random())
    longest = _SETUP if reason == "setup" else min(_LONGEST, _FIRST * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS))
    return timedelta(seconds=longest * (0.5 + random.random() / 2))
