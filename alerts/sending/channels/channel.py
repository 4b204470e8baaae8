"""Interface of every channel.

A channel consists of a file in this folder and its settings in `settings`. The conformance suite tests it.
"""

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
        notification: notification to send.
        thread: receipt of the thread's first message in this channel, or None if this message is the first or the
            channel gave no receipt. A thread belongs to an incident, or to an episode without one.
        overtaken: true if a later message of the thread has arrived, or its incident is closed. This message must not
            replace that state.
        uncertain_since: start of an attempt with unknown outcome, or None.
    """

    notification: Notification
    thread: Receipt | None = None
    overtaken: bool = False
    uncertain_since: datetime | None = None


class Channel(Protocol):
    """Destination of notifications. Only one thread at a time may use it.

    Attributes:
        kind: kind of the channel in the settings.
        settle: delay after a lost response before a search for the message is reliable.
        name: name of the channel in the settings.
        pace: minimum seconds between two messages.
    """

    kind: str
    settle: timedelta
    name: str
    pace: float

    def send(self, outgoing: Outgoing) -> Receipt:
        """Deliver the notification. Raise `ChannelError`, without any secret in its text.

        If `uncertain_since` is set, a channel with a search looks for the message first.
        """

    def check(self) -> Sequence[str]:
        """Return the limitations, one line each, without sending a message. Raise `ChannelError` if the channel is
        unusable.
        """
