"""The channels of a home: the section ``channels`` of its settings, checked to the last key.

    channels:
      oncall:
        kind: slack
        channel: C0123456789
        token: ~/.config/logprobe/slack-token
        severities: [critical]

Secrets are in the environment (``token: $SLACK_TOKEN``) or in private files, never in the settings.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, assert_never

from pydantic import AfterValidator, Field, TypeAdapter

from logprobe.alerts.sending.channels.apprise_url import AppriseUrl
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Channel
from logprobe.alerts.sending.channels.network import checked_address
from logprobe.alerts.sending.channels.slack import Slack
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.alerts.sending.credentials import Secret, read_secret
from logprobe.monitor import settings_file
from logprobe.monitor.home import Home

SECTION: Final = "channels"
_ID_NEEDED: Final = (
    "expected the channel's ID, such as C0123456789; find it at the end of the channel's details in Slack"
)


def _channel_id(name: str) -> str:
    if not re.fullmatch(r"[CGD][A-Z0-9]{2,}", name):
        raise ValueError(_ID_NEEDED)
    return name


Severity: TypeAlias = Literal["info", "warning", "critical"]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
SECONDS: Final = 10.0  # of one call over the network
SETTLE: Final = timedelta(seconds=15)  # after which a message, had Slack accepted it, can be found


class _Channel(settings_file.Settings):
    """Settings of every channel. `url`, `token` and `secret` are places of a secret, see `read_secret`."""

    severities: tuple[Severity, ...] = ("warning", "critical")
    """severities of the messages that it gets"""


class SlackSettings(_Channel):
    """A Slack channel through a bot token."""

    kind: Literal["slack"]
    """slack, webhook or apprise"""
    channel: Annotated[str, AfterValidator(_channel_id)]
    """of slack: the ID, as a name can be given to another channel"""
    token: str
    """of slack: place of the bot token, `$VARIABLE` or a file"""
    api_url: str = Field(default="https://slack.com/api/", pattern=r"^https?://[^\s]+/$")
    """of slack: another one for GovSlack"""


class WebhookSettings(_Channel):
    """A receiver of signed JSON documents."""

    kind: Literal["webhook"]
    """slack, webhook or apprise"""
    url: str
    """of webhook and apprise: place of the URL, `$VARIABLE` or a file"""
    secret: str
    """of webhook: place of the key that signs"""


class AppriseSettings(_Channel):
    """An address of the package apprise."""

    kind: Literal["apprise"]
    """slack, webhook or apprise"""
    url: str
    """of webhook and apprise: place of the URL, `$VARIABLE` or a file"""


Settings: TypeAlias = SlackSettings | WebhookSettings | AppriseSettings


_CHANNELS: Final = TypeAdapter(dict[_Name, Annotated[Settings, Field(discriminator="kind")]])


def read_settings(home: Path) -> dict[str, Settings]:
    """The channels of a home by name.

    Raises `ConfigurationError` with file, line and key, all mistakes of the section at once.
    """
    return settings_file.read(home, SECTION, _CHANNELS, {})


@dataclass(frozen=True, slots=True)
class Route:
    """A channel, what it wants to hear of, and how long after a lost answer it can be asked whether the message
    arrived."""

    channel: Channel
    severities: frozenset[str]
    settle: timedelta = timedelta(0)
    kind: str = ""  # as in the channels file


def channels_of(
    home: Home,
    *,
    environment: Mapping[str, str],
    stopping: threading.Event,
    clock: Callable[[], datetime],
    seconds: float = SECONDS,
) -> list[Route]:
    """Return the channels that a home is configured with. `seconds`: of one call over the network.

    Raises:
        ConfigurationError, MissingExtraError: one cannot be used.
    """

    def secret(label: str, place: str) -> Secret:
        inside = str(home.path / place) if place.startswith("./") else place
        return read_secret(label, inside, environment)

    return [
        Route(
            _channel(name, channel, secret, Calls(seconds, stopping), clock),
            frozenset(channel.severities),
            SETTLE if isinstance(channel, SlackSettings) else timedelta(0),
            channel.kind,
        )
        for name, channel in read_settings(home.path).items()
    ]


def _channel(
    name: str,
    settings: Settings,
    read: Callable[[str, str], Secret],
    calls: Calls,
    clock: Callable[[], datetime],
) -> Channel:
    def secret(what: str, place: str) -> Secret:
        return read(f"channel {name}: {what}", place)

    match settings:
        case SlackSettings():
            token = secret("token", settings.token)
            return Slack(name, token=token, channel=settings.channel, calls=calls, api_url=settings.api_url)
        case WebhookSettings():
            url = checked_address(secret("url", settings.url), f"channel {name}: its URL")
            key = secret("secret", settings.secret)
            return Webhook(name, url=url, secret=key, calls=calls, clock=clock)
        case AppriseSettings():
            return AppriseUrl(name, url=secret("url", settings.url), calls=calls)
        case _:
            assert_never(settings)
