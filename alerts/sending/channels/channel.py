"""Interface of every channel, and the receipt of a message that it has taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from logprobe.alerts.notification import Notification

# Where a message is, as its channel names it: enough to find it again. Empty where a message cannot be changed later.
Receipt: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One notification on its way to one channel.

    Attributes:
        notification: what to say.
        thread: receipt of the first message in this channel of the incident, or of the episode that belongs to none;
            None: this is the first, or the channel gave no receipt.
        overtaken: whether a later message of the thread is there already, or that its incident is closed, whose place
            this one must not take.
        later: whether a message of the thread has been sent.
        uncertain_since: when an attempt began of which it is not known whether the message arrived; None: it did not.
    """

    notification: Notification
    thread: Receipt | None = None
    uncertain_since: datetime | None = None
    overtaken: bool = False
    later: bool = False


class Channel(Protocol):
    """A place that takes notifications. Used by one thread at a time."""

    @property
    def name(self) -> str:
        """Name in the settings."""

    @property
    def pace(self) -> float:
        """Seconds between two messages, at least."""

    def send(self, outgoing: Outgoing) -> Receipt:
        """Delivers, within the channel's time limit. Raises `ChannelError`.

        A channel that can look for a message does so first where `uncertain_since` is set.
        """

    def check(self) -> Sequence[str]:
        """Return what will not work, one line each; send no message. Raise `ChannelError` if nothing will."""
