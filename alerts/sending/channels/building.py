"""From settings to channels: reads the secrets, and checks what can be checked before the first message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import assert_never

from logprobe.alerts.sending.channels.apprise_url import AppriseUrl
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Channel
from logprobe.alerts.sending.channels.console import Console
from logprobe.alerts.sending.channels.file import File
from logprobe.alerts.sending.channels.network import checked_address
from logprobe.alerts.sending.channels.settings import (
    AppriseSettings,
    ConsoleSettings,
    FileSettings,
    Settings,
    SlackBotSettings,
    SlackWebhookSettings,
    WebhookSettings,
    read_settings,
)
from logprobe.alerts.sending.channels.slack_bot import SlackBot
from logprobe.alerts.sending.channels.slack_webhook import SlackWebhook
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.alerts.sending.credentials import Secret, read_secret
from logprobe.monitor.home import Home


@dataclass(frozen=True, slots=True)
class Route:
    """A channel, what it wants to hear of, and how long after a lost answer it can be asked whether the message arrived."""

    channel: Channel
    severities: frozenset[str]
    settle: timedelta = timedelta(0)
    kind: str = ""  # as in the channels file


def channels_of(
    home: Home, *, environment: Mapping[str, str], stopping: threading.Event, clock: Callable[[], datetime]
) -> list[Route]:
    """The channels that a home is configured with. Raises `ConfigurationError` or `MissingExtraError`."""
    settings = read_settings(home.path, environment)
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
    return [build.route(name, each) for name, each in settings.items()]


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
                    token=self._secret(name, settings.token_env, settings.token_file),
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
                secret = self._secret(name, settings.secret_env, settings.secret_file)
                return Webhook(
                    name,
                    url=self._address(name, settings),
                    secret=secret,
                    calls=calls,
                    clock=self.clock,
                    allow_link_local=settings.allow_link_local,
                )
            case AppriseSettings():
                url = self._secret(name, settings.url_env, settings.url_file)
                return AppriseUrl(name, url=url, calls=calls, allow_link_local=settings.allow_link_local)
            case FileSettings():
                return File(name, self.folder / settings.path.expanduser())
            case ConsoleSettings():
                return Console(name)
            case _:
                assert_never(settings)

    def _address(self, name: str, settings: SlackWebhookSettings | WebhookSettings) -> Secret:
        secret = self._secret(name, settings.url_env, settings.url_file)
        what = f"channel {name}: what {settings.url_file or settings.url_env} holds"
        return checked_address(secret, what, allow_link_local=settings.allow_link_local)

    def _secret(self, name: str, variable: str, file: Path | None) -> Secret:
        return read_secret(f"channel {name}", variable=variable, file=file, environment=self.environment)
