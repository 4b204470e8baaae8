"""The channels of a home: the section ``channels`` of its settings, checked to the last key.

    channels:
      oncall:
        kind: slack_bot
        channel: C0123456789
        token_file: ~/.config/logprobe/slack-token
        severities: [critical]

Secrets are in the environment or in private files, never in the settings.
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
from logprobe.alerts.sending.channels.file import Console, File
from logprobe.alerts.sending.channels.network import checked_address
from logprobe.alerts.sending.channels.slack_bot import SlackBot
from logprobe.alerts.sending.channels.slack_webhook import SlackWebhook
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.alerts.sending.credentials import Secret, read_secret
from logprobe.collectors.errors import ConfigurationError
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
_Variable: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class _Channel(settings_file.Settings):
    severities: tuple[Severity, ...] = ("warning", "critical")
    timeout: float = Field(default=10.0, gt=0, le=60)  # seconds, of one call over the network
    allow_link_local: bool = False  # also where clouds hand machines their secrets; see `addresses`


class SlackBotSettings(_Channel):
    """A Slack channel through a bot token."""

    kind: Literal["slack_bot"]
    channel: Annotated[str, AfterValidator(_channel_id)]  # a name can be given to another channel
    token_env: _Variable | None = None
    token_file: Path | None = None
    pictures: bool = True
    api_url: str = Field(default="https://slack.com/api/", pattern=r"^https?://[^\s]+/$")  # another one for GovSlack
    # Seconds after which a message, had it been accepted, can be found
    settle: float = Field(default=15.0, ge=0, le=300)


class SlackWebhookSettings(_Channel):
    """A Slack channel through an incoming webhook."""

    kind: Literal["slack_webhook"]
    url_env: _Variable | None = None
    url_file: Path | None = None


class WebhookSettings(_Channel):
    """A receiver of signed JSON documents."""

    kind: Literal["webhook"]
    url_env: _Variable | None = None
    url_file: Path | None = None
    secret_env: _Variable | None = None
    secret_file: Path | None = None


class ConsoleSettings(_Channel):
    """Standard error of the service."""

    kind: Literal["console"]


class FileSettings(_Channel):
    """A file of JSON lines; a relative path starts at the home."""

    kind: Literal["file"]
    path: Path


class AppriseSettings(_Channel):
    """An address of the package apprise."""

    kind: Literal["apprise"]
    url_env: _Variable | None = None
    url_file: Path | None = None


Settings: TypeAlias = (
    SlackBotSettings | SlackWebhookSettings | WebhookSettings | ConsoleSettings | FileSettings | AppriseSettings
)


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
    home: Home, *, environment: Mapping[str, str], stopping: threading.Event, clock: Callable[[], datetime]
) -> list[Route]:
    """The channels that a home is configured with. Raises `ConfigurationError` or `MissingExtraError`."""
    settings = read_settings(home.path)
    return routes_of(settings, home, environment=environment, stopping=stopping, clock=clock)


def routes_of(
    settings: Mapping[str, Settings],
    home: Home,
    *,
    environment: Mapping[str, str],
    stopping: threading.Event,
    clock: Callable[[], datetime],
) -> list[Route]:
    """The channels of `settings`, by name. Raises `ConfigurationError` or `MissingExtraError`."""
    build = _Builder(home.path, environment, stopping, clock)
    return [build.route(name, channel) for name, channel in settings.items()]


@dataclass(frozen=True, slots=True)
class _Builder:
    folder: Path
    environment: Mapping[str, str]
    stopping: threading.Event
    clock: Callable[[], datetime]

    def route(self, name: str, settings: Settings) -> Route:
        settle = timedelta(seconds=settings.settle if isinstance(settings, SlackBotSettings) else 0.0)
        return Route(self._channel(name, settings), frozenset(settings.severities), settle, settings.kind)

    def _channel(self, name: str, settings: Settings) -> Channel:
        calls = Calls(settings.timeout, self.stopping)
        match settings:
            case SlackBotSettings():
                return SlackBot(
                    name,
                    token=self._secret(name, settings, "token"),
                    channel=settings.channel,
                    calls=calls,
                    api_url=settings.api_url,
                    pictures=settings.pictures,
                    allow_link_local=settings.allow_link_local,
                )
            case SlackWebhookSettings():
                url = self._address(name, settings)
                return SlackWebhook(name, url=url, calls=calls, allow_link_local=settings.allow_link_local)
            case WebhookSettings():
                secret = self._secret(name, settings, "secret")
                return Webhook(
                    name,
                    url=self._address(name, settings),
                    secret=secret,
                    calls=calls,
                    clock=self.clock,
                    allow_link_local=settings.allow_link_local,
                )
            case AppriseSettings():
                url = self._secret(name, settings, "url")
                return AppriseUrl(name, url=url, calls=calls, allow_link_local=settings.allow_link_local)
            case FileSettings():
                return File(name, self.folder / settings.path.expanduser())
            case ConsoleSettings():
                return Console(name)
            case _:
                assert_never(settings)

    def _address(self, name: str, settings: SlackWebhookSettings | WebhookSettings) -> Secret:
        secret = self._secret(name, settings, "url")
        label = f"channel {name}: what {settings.url_file or settings.url_env or 'its variable'} holds"
        return checked_address(secret, label, allow_link_local=settings.allow_link_local)

    def _secret(self, name: str, settings: Settings, what: str) -> Secret:
        variable, file = getattr(settings, f"{what}_env"), getattr(settings, f"{what}_file")
        if variable is None and file is None:
            raise ConfigurationError(f"channel {name}: say where its {what} is: `{what}_env` or `{what}_file`")
        return read_secret(f"channel {name}", variable=variable or "", file=file, environment=self.environment)
