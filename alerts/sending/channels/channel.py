"""Interface of every channel. A channel is a file here, its settings are in `settings`, its tests are the conformance
suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from logprobe.alerts.notification import Notification

# Where a message is, as its channel names it: enough to find it again. Empty where a message cannot be changed later.
Receipt: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One notification in flight to one channel.

    Attributes:
        notification: what to say.
        thread: receipt of the first message in this channel of the incident, or of the episode that belongs to none;
            None: this is the first, or the channel gave no receipt.
        overtaken: whether a later message of the thread is there already, or that its incident is closed, whose place
            this one must not take.
        uncertain_since: when an attempt began of which it is not known whether the message arrived; None: it did not.
    """

    notification: Notification
    thread: Receipt | None = None
    overtaken: bool = False
    uncertain_since: datetime | None = None


class Channel(Protocol):
    """A destination of notifications. Used by one thread at a time.

    Attributes:
        kind: its kind in the settings.
        settle: time after a lost response until the channel can be asked whether the message arrived.
        name: its name in the settings.
        pace: minimum seconds between two messages.
    """

    kind: str
    settle: timedelta
    name: str
    pace: float

    def send(self, outgoing: Outgoing) -> Receipt:
        """Deliver the notification. Raise `ChannelError`, without any secret in its text.

        A channel that can look for a message does so first where `uncertain_since` is set.
        """

    def check(self) -> Sequence[str]:
        """Return what will not work, one line each; send no message. Raise `ChannelError` if nothing will."""
