"""Settings that mean more than they say, or have no end: refused with file and limit, for every file of settings."""

import os

import pytest

from logprobe.alerts.rules import thresholds
from logprobe.alerts.sending.channels.settings import read_settings
from logprobe.app.dashboard.access import sign_in, token
from logprobe.app.dashboard.reading.tokenizers import vocabulary
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.settings import limits, yaml_text

LEVELS = 6
# Less than 300 bytes that mean more than half a million values.
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, LEVELS)
)
YAML = {
    "logprobe.yaml": read_settings,
    "ours.yaml": lambda home: thresholds.of_file(home / "ours.yaml"),
    "recipe.yaml": lambda home: parity_recipe.read(home / "recipe.yaml"),
}
ALL = {**YAML, "secrets.toml": sign_in.load, "token": lambda home: token.read(Home(home)), "RUN.json": RecordedRun}


def write(folder, name, text):
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)


@pytest.mark.parametrize("name", YAML)
def test_aliases_of_aliases(tmp_path, name):
    write(tmp_path, name, ALIASES)
    with pytest.raises(ConfigurationError, match=rf"{name} has [\d,]{{7,}} values .* LOGPROBE_LIMITS=settings_values"):
        YAML[name](tmp_path)


@pytest.mark.parametrize("deep", [101, limits.SETTINGS.value])
def test_nesting_without_end(tmp_path, deep):
    """Without hours of the parser, whose time grows with the square of what is open."""
    write(tmp_path, "logprobe.yaml", "[" * deep)
    with pytest.raises(ConfigurationError, match=r"nested too deeply"):
        YAML["logprobe.yaml"](tmp_path)
    assert yaml_text.plain("[" * 100 + "]" * 100, "logprobe.yaml") != []


@pytest.mark.parametrize("name", YAML)
@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {<<: *a}\n"])
def test_nesting_in_every_file(tmp_path, name, text):
    write(tmp_path, name, text)
    with pytest.raises(ConfigurationError, match=r"nested too deeply|invalid YAML|cannot be read"):
        YAML[name](tmp_path)


def test_nesting_in_toml_and_json(tmp_path):
    write(tmp_path, "secrets.toml", "a = " + "[" * 5000)
    with pytest.raises(ConfigurationError, match=r"secrets\.toml: cannot be read"):
        sign_in.load(tmp_path)
    write(tmp_path, "RUN.json", "[" * 5000)
    with pytest.raises(ConfigurationError, match=r"cannot read RUN\.json"):
        RecordedRun(tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_a_file_that_is_larger_than_settings_are(tmp_path, name):
    write(tmp_path, name, "#" * (limits.SETTINGS.value + 1))
    with pytest.raises(ConfigurationError, match="LOGPROBE_LIMITS=settings_kib"):
        ALL[name](tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_a_pipe_in_place_of_a_file_holds_nothing_up(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name, 0o600)
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        ALL[name](tmp_path)


def test_a_device_in_place_of_a_secret():
    from logprobe.alerts.sending.channels.settings import read_secret

    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_secret("channel a: token", "/dev/zero", {})


def test_a_tokenizer_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGPROBE_LIMITS", "tokenizer_mib=1")
    write(tmp_path, "logprobe.yaml", "tokenizers: {'*': big.json}\n")
    write(tmp_path, "big.json", " " * ((1 << 20) + 1))
    with pytest.raises(ConfigurationError, match="LOGPROBE_LIMITS=tokenizer_mib"):
        vocabulary(tmp_path, "r")
