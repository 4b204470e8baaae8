"""Channels of a data directory, from the section ``channels`` of its settings, with validation of every key.

    channels:
      oncall:
        kind: slack
        channel: C0123456789
        token: ~/.config/logprobe/slack-token
        severities: [critical]

The settings never hold a secret. They name an environment variable (``token: $SLACK_TOKEN``) or a private file.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from pydantic import AfterValidator, Field, SecretStr, TypeAdapter

from logprobe.alerts.sending.channels.apprise_url import AppriseUrl
from logprobe.alerts.sending.channels.channel import Channel
from logprobe.alerts.sending.channels.slack import Slack
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.settings import limits, settings_file

SECTION: Final = "channels"
_NOT_PRIVATE: Final = stat.S_IRWXO | stat.S_IWGRP  # a group may read: that is how Kubernetes hands secrets to a pod
Severity: TypeAlias = Literal["info", "warning", "critical"]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


def _channel_id(name: str) -> str:
    if not re.fullmatch(r"[CGD][A-Z0-9]{2,}", name):
        raise ValueError(
            "expected the channel's ID, such as C0123456789; find it at the end of the channel's details in Slack"
        )
    return name


class _Channel(settings_file.Settings):
    """Common settings of all channels. `url`, `token` and `secret` name places of secrets, see `read_secret`."""

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


class Route(NamedTuple):
    """Channel with the severities of messages that it receives."""

    channel: Channel
    severities: frozenset[str]


def read_settings(home: Path) -> dict[str, Settings]:
    """Return the channels of a data directory by name.

    Raise one `ConfigurationError` with file, line and key of all mistakes in the section.
    """
    return settings_file.read(home, SECTION, _CHANNELS, {})


def channels_of(home: Home, *, environment: Mapping[str, str], clock: Callable[[], datetime]) -> list[Route]:
    """Return the configured channels of a data directory.

    Raise `ConfigurationError` or `MissingExtraError` for an unusable channel.
    """

    def made(name: str, settings: Settings) -> Channel:
        def secret(what: str) -> SecretStr:
            place = getattr(settings, what)
            inside = str(home.path / place) if place.startswith("./") else place
            return read_secret(f"channel {name}: {what}", inside, environment)

        match settings:
            case SlackSettings():
                return Slack(name, token=secret("token"), channel=settings.channel, api_url=settings.api_url)
            case WebhookSettings():
                return Webhook(name, url=secret("url"), secret=secret("secret"), clock=clock)
        return AppriseUrl(name, url=secret("url"))

    found = read_settings(home.path).items()
    return [Route(made(name, settings), frozenset(settings.severities)) for name, settings in found]


def read_secret(label: str, place: str, environment: Mapping[str, str]) -> SecretStr:
    """Return the secret of ``$VARIABLE`` of `environment`, or of the path of a private file.

    Raises:
        ConfigurationError: it does not exist, or users other than the owner and the group may read the file. The
            message names the place. It never quotes a text that may be the secret.
    """
    if place.startswith("$"):
        where = f"{label}: the environment variable {place[1:]}"
        if place[1:] not in environment:
            raise ConfigurationError(f"{where} is not set; export it where the service starts")
        value = environment[place[1:]]
    elif place.startswith(("/", "~/", "./")):
        where = f"{label}: the file {place}"
        value = _read_private(Path(place).expanduser())
    else:
        raise ConfigurationError(
            f"{label} is neither $VARIABLE nor the path of a file (/…, ~/…, ./…); write where the secret is, never the "
            "secret itself"
        )
    secret = value.strip()
    if not secret or not secret.isprintable() or " " in secret:
        raise ConfigurationError(
            f"{where} is empty, or is not a single line without spaces; write the secret alone on one line"
        )
    return SecretStr(secret)


def _read_private(file: Path) -> str:
    try:
        return limits.read_text(file, limits.SETTINGS, not_for=_NOT_PRIVATE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError(
            f"{file}: cannot read the secret ({reason}); make it readable for the service's user"
        ) from None
