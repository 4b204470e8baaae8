"""Settings of channels: every mistake is named with its line, and secrets come from elsewhere."""

from __future__ import annotations

import stat
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_slack import TOKEN

from logprobe.alerts.sending.channels.settings import Settings, channels_of, read_secret, read_settings
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home

EVERYTHING = """\
channels:
  oncall:
    kind: slack
    channel: C0123456789
    token: {token}
    severities: [critical]
  hook: {{kind: webhook, url: $HOOK, secret: $SIGN, severities: [info, warning, critical]}}
  here: {{kind: webhook, url: ./url, secret: $SIGN}}
"""


def parse_settings(text: str, folder: Path) -> dict[str, Settings]:
    (folder / "logprobe.yaml").write_text(text)
    return read_settings(folder)


def build(home: Path, environment: dict[str, str]) -> list:
    return channels_of(Home(home), environment=environment, clock=lambda: datetime.now(UTC))


def test_all_kinds(home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    home.mkdir()
    (home / "url").write_text("http://127.0.0.1/hook")
    (home / "url").chmod(0o600)
    (home / "logprobe.yaml").write_text(EVERYTHING.format(token=token))
    routes = build(home, {"HOOK": "https://example.org/x", "SIGN": "s" * 32})
    assert [route.channel.name for route in routes] == ["oncall", "hook", "here"]
    assert [len(route.severities) for route in routes] == [1, 3, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "channels:\n  a:\n    kind: slack\n    chanel: C012345\n",
            "logprobe.yaml:4: channels.a.chanel: unknown key; did you mean 'channel'?",
        ),
        (
            "channels:\n  a:\n    kind: slack\n    channel: '#alerts'\n",
            "logprobe.yaml:4: channels.a.channel: expected the channel's ID",
        ),
        ("channels:\n  a:\n    kind: slak\n", "logprobe.yaml:2: channels.a"),
        ("channels:\n  a: {kind: apprise, url: $A}\n\n  a: {kind: apprise, url: $A}\n", "logprobe.yaml:4"),
        ("channels:\n  a:\n    kind: apprise\n    severities: [loud]\n", "logprobe.yaml:4"),
        ("chanels: {}\n", "logprobe.yaml:1: unknown key 'chanels'; did you mean 'channels'?"),
        ("channels:\n  a:\n    kind: apprise\n  b: [\n", "logprobe.yaml:5: invalid YAML"),
        ("channels:\n  'a b': {kind: apprise, url: $A}\n", "logprobe.yaml:2"),
        (
            "channels:\n  a:\n    kind: webhook\n    password: hunter2hunter2\n",
            "logprobe.yaml:4: channels.a.password: unknown key",
        ),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(text, tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("{kind: slack, channel: C0123456789, token: xoxb-canary}", "channel a: token is neither"),
        ("{kind: webhook, url: $HOOK, secret: whsec_canary/x}", "channel a: secret is neither"),
        ("{kind: apprise, url: 'mailto://canary'}", "channel a: url is neither"),
        ("{kind: apprise, url: $NONE}", "channel a: url: the environment variable NONE is not set"),
        ("{kind: apprise}", "logprobe.yaml:1: channels.a.url: Field required"),
    ],
)
def test_where_a_secret_is_has_to_be_said(home: Path, channel: str, words: str) -> None:
    home.mkdir()
    (home / "logprobe.yaml").write_text(f"channels: {{a: {channel}}}")
    with pytest.raises(ConfigurationError) as caught:
        build(home, {"HOOK": "https://example.org/x"})
    assert words in str(caught.value)
    assert "canary" not in str(caught.value), "it may be the secret itself"


def test_a_secret_is_read_unless_others_may_read_or_change_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("canary\n")
    for mode in (stat.S_IRUSR, 0o600, 0o440):
        file.chmod(mode)
        assert read_secret("channel a: token", str(file), {}).get_secret_value() == "canary", oct(mode)
    for mode in (0o604, 0o644, 0o602, 0o620, 0o666):
        file.chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_secret("channel a: token", str(file), {})


@pytest.mark.parametrize("content", ["", "  \n", "can ary", "can\nary"])
def test_a_secret_is_one_word(content: str) -> None:
    with pytest.raises(ConfigurationError, match="environment variable X") as caught:
        read_secret("channel a: token", "$X", {"X": content})
    assert "can" not in str(caught.value).replace("channel", "")


def test_the_file_in_the_documentation_is_valid_and_one_without_channels_too(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "alerts.md").read_text(encoding="utf-8")
    block = page[page.index("    channels:\n") :].split("\n\n")[0]
    names = ["oncall", "receiver", "mail"]
    assert list(parse_settings(textwrap.dedent(block), tmp_path)) == names
    assert [parse_settings(text, tmp_path) for text in ("", "channels: {}\n", "# nothing yet\n")] == [{}] * 3
