"""One file of settings: its sections, the files they were before, and errors with file and line."""

import pytest
from pydantic import TypeAdapter

from logprobe.alerts.rules import thresholds
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.settings import settings_file
from logprobe.monitor.settings.located import Table
from logprobe.monitor.settings.settings_file import read, section

TEXTS = TypeAdapter(dict[str, str])
ALERTS = "- {name: a, metric: k3_kl, above: 1}\n"


def test_a_section_is_read_with_its_places(tmp_path):
    assert section(tmp_path, "tokenizers") is None
    (tmp_path / settings_file.FILE).write_text("channels:\n\ntokenizers:\n  a: b\n")
    assert isinstance(section(tmp_path, "channels"), Table)
    assert read(tmp_path, "tokenizers", TEXTS, {}) == {"a": "b"}
    assert read(tmp_path, "channels", TEXTS, {"default": ""}) == {"default": ""}
    (tmp_path / settings_file.FILE).write_text("tokenizers:\n  a: b\n  c: [1]\n")
    with pytest.raises(ConfigurationError, match=r"logprobe\.yaml:3: tokenizers\.c: Input should be a valid string"):
        read(tmp_path, "tokenizers", TEXTS, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokenisers: {}\n", r":1: unknown key 'tokenisers'; did you mean 'tokenizers'"),
        ("\ntokenizers: 3\n", r":2: `tokenizers` is 3; write a mapping or a list"),
        ("a: [\n", r":2: invalid YAML"),
        ("- 1\n", r":1: expected a mapping"),
    ],
)
def test_a_mistake_anywhere_in_the_file_is_named(tmp_path, text, words):
    (tmp_path / settings_file.FILE).write_text(text)
    with pytest.raises(ConfigurationError, match=rf"logprobe\.yaml{words}"):
        section(tmp_path, "tokenizers")


def test_entries_have_their_lines_in_the_whole_file(tmp_path):
    text = "correction: {}\nalerts:\n" + "".join(f"    {line}\n" for line in ALERTS.splitlines()) + "channels: []\n"
    file = tmp_path / settings_file.FILE
    file.write_text(text)
    assert [threshold.name for threshold in thresholds.of_home(tmp_path)] == ["a"]
    file.write_text(text.replace("metric:", "metrik:"))
    with pytest.raises(ConfigurationError, match=r"logprobe\.yaml:3: alerts\.0"):
        thresholds.of_home(tmp_path)
