"""Trying a channel out: one test message, and plainly what does not work."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels.channel import Channel, Outgoing
from logprobe.alerts.sending.channels.settings import Route
from logprobe.collectors.errors import ChannelError, ConfigurationError

_ADVICE: Final = {
    "unreachable": "there is no response; check the address, and HTTPS_PROXY if there is a proxy",
    "uncertain": "the message may have arrived anyway; check there, and try again",
    "busy": "it is rate limiting; try again later",
    "refused": "it does not accept messages like this one",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a test message. `lines`: in words, what does not work first."""

    delivered: bool
    lines: tuple[str, ...]


def chosen(routes: Sequence[Route], name: str) -> Channel:
    """The channel of that name. Raises `ConfigurationError` when there is none."""
    channels = {route.channel.name: route.channel for route in routes}
    if name in channels:
        return channels[name]
    if not channels:
        raise ConfigurationError(
            "no channels are configured; list `channels` in the home's logprobe.yaml (docs/alerts.md)"
        )
    close = difflib.get_close_matches(name, channels, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(channels)}"
    raise ConfigurationError(f"there is no channel {name!r}; {hint}")


def attempt(channel: Channel, *, now: datetime) -> Trial:
    """Sends a test message to `channel`, at once and past the outbox."""
    try:
        limits = channel.check()
        channel.send(Outgoing(sample(channel.name, now)))
    except ChannelError as error:
        advice = f"; {_ADVICE[error.reason]}" if error.reason in _ADVICE else ""
        return Trial(delivered=False, lines=(f"not delivered: {error}{advice}",))
    return Trial(delivered=True, lines=(*limits, "delivered: look for the test message there"))


def sample(channel: str, now: datetime) -> Notification:
    """A notification that says that it is a test."""
    return Notification(
        key=f"test/{channel}/{now.isoformat()}",
        run="no run",
        rule="test",
        episode=f"test/{channel}/{now.isoformat()}",
        state="firing",
        severity="info",
        at=now,
        summary=f"This is a test of the channel {channel}. Nothing is wrong, and the numbers are made up.",
        metric="backend.k3_kl",
        value=3.1e-2,
        unit="nats",
        step=59,
        since_step=40,
    )
