"""The channels of a home: read from ``channels.yaml``, checked to the last key, or from the environment alone.

    channels:
      oncall:
        kind: slack_bot
        channel: C0123456789
        token_file: ~/.config/logprobe/slack-token
        severities: [critical]

Secrets are in the environment or in private files, never in this one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from logprobe.alerts import located
from logprobe.alerts.located import Table
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits

FILE: Final = "channels.yaml"
TOKEN, CHANNEL, WEBHOOK = "LOGPROBE_SLACK_TOKEN", "LOGPROBE_SLACK_CHANNEL", "LOGPROBE_SLACK_WEBHOOK"
_ID_NEEDED: Final = (
    "expected the channel's ID, such as C0123456789; find it at the end of the channel's details in Slack"
)
_KIND: Final = 2  # of pydantic's path: where it puts the kind that it chose

Severity: TypeAlias = Literal["info", "warning", "critical"]
_Variable: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class _Channel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    severities: tuple[Severity, ...] = ("warning", "critical")
    timeout: float = Field(default=10.0, gt=0, le=60)  # seconds, of one call over the network
    allow_link_local: bool = False  # also where clouds hand machines their secrets; see `addresses`


class SlackBotSettings(_Channel):
    """A Slack channel through a bot token."""

    kind: Literal["slack_bot"]
    channel: str = Field(pattern=r"^[CGD][A-Z0-9]{2,}$")  # its ID: a name can be given to another channel
    token_env: _Variable = TOKEN
    token_file: Path | None = None
    pictures: bool = True
    api_url: str = Field(default="https://slack.com/api/", pattern=r"^https?://[^\s]+/$")  # another one for GovSlack
    # Seconds after which a message, had it been accepted, can be found
    settle: float = Field(default=15.0, ge=0, le=300)


class SlackWebhookSettings(_Channel):
    """A Slack channel through an incoming webhook."""

    kind: Literal["slack_webhook"]
    url_env: _Variable = WEBHOOK
    url_file: Path | None = None


class WebhookSettings(_Channel):
    """A receiver of signed JSON documents."""

    kind: Literal["webhook"]
    url_env: _Variable = "LOGPROBE_WEBHOOK_URL"
    url_file: Path | None = None
    secret_env: _Variable = "LOGPROBE_WEBHOOK_SECRET"  # noqa: S105 - a name
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
    url_env: _Variable = "LOGPROBE_APPRISE_URL"
    url_file: Path | None = None


Settings: TypeAlias = (
    SlackBotSettings | SlackWebhookSettings | WebhookSettings | ConsoleSettings | FileSettings | AppriseSettings
)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    channels: dict[_Name, Annotated[Settings, Field(discriminator="kind")]]


def read_settings(file: Path, environment: Mapping[str, str]) -> dict[str, Settings]:
    """The channels by name: those of `file`; without one, Slack as far as the environment names it.

    Raises `ConfigurationError` with file, line and key, all mistakes of the file at once.
    """
    try:
        text = limits.read_text(file, limits.SETTINGS)
    except FileNotFoundError:
        return _from_environment(environment)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    return parse_settings(text, str(file))


def parse_settings(text: str, where: str) -> dict[str, Settings]:
    """The channels of a file's `text`; `where` names it in errors. Raises `ConfigurationError`."""
    given = located.parse(text, where)
    try:
        return dict(_File.model_validate({"channels": {}} | located.plain(given)).channels)
    except ValidationError as error:
        mistakes = [_mistake(given, dict(each)) for each in error.errors(include_url=False, include_input=False)]
        raise ConfigurationError("; ".join(mistakes)) from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Settings]:
    if TOKEN in environment or f"{TOKEN}_FILE" in environment:
        try:
            return {"slack": SlackBotSettings(kind="slack_bot", channel=environment.get(CHANNEL, ""))}
        except ValidationError:
            raise ConfigurationError(f"the environment variable {CHANNEL}: {_ID_NEEDED}") from None
    if WEBHOOK in environment or f"{WEBHOOK}_FILE" in environment:
        return {"slack": SlackWebhookSettings(kind="slack_webhook")}
    return {}


def _mistake(given: Table, error: dict[str, Any]) -> str:
    # channels.<name>.<kind>.<key>: the kind is pydantic's, the file has no such level.
    loc = list(error["loc"])
    kind, path = (loc[2], [*loc[:2], *loc[3:]]) if len(loc) > _KIND else (None, loc)
    return f"{located.place_of(given, path)}: {'.'.join(map(str, path))}: {_words(error, kind, str(path[-1]))}"


def _words(error: dict[str, Any], kind: str | None, key: str) -> str:
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, _FIELDS.get(kind, ["channels"]), 1)
        return "unknown key" + (f"; did you mean {close[0]}?" if close else "")
    if key == "channel":
        return _ID_NEEDED
    return str(error["msg"])


_KINDS: Final = (
    SlackBotSettings,
    SlackWebhookSettings,
    WebhookSettings,
    ConsoleSettings,
    FileSettings,
    AppriseSettings,
)
_FIELDS: Final[dict[Any, list[str]]] = {
    kind.model_fields["kind"].annotation.__args__[0]: list(kind.model_fields)  # type: ignore[union-attr]  # a Literal
    for kind in _KINDS
}
