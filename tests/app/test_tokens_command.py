"""`logprobe show --tokens`: the strip of a step's worst sequence, with its numbers, and nothing that steers a terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from processes import logprobe
from recorded_home import ingest_recorded

from logprobe.app.text.terminal import painted

RUN = "v1-initial"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens") / "home"
    ingest_recorded(folder, RUN, before_step=12)
    return folder


def test_the_strip_and_its_worst_tokens(home: Path) -> None:
    shown = logprobe("show", "--tokens", RUN, "--steps", "10", "--home", home).stdout
    assert f"run       {RUN}, step 10" in shown
    assert "\x1b" not in shown  # nobody looks
    document = json.loads(logprobe("show", "--tokens", RUN, "--steps", "10", "--json", "--home", home).stdout)
    assert document["step"] == 10
    assert document["sample_id"] == document["sequences"][0]["sample_id"]
    worst = max((token for token in document["tokens"] if token["k3"] is not None), key=lambda token: token["k3"])
    first = shown.split("────\n", 1)[-1].splitlines()[0].split()
    assert [int(part) for part in first[:2]] == [worst["position"], worst["id"]]


def test_another_sequence_and_what_is_not_there(home: Path) -> None:
    listed = json.loads(logprobe("show", "--tokens", RUN, "--steps", "10", "--json", "--home", home).stdout)[
        "sequences"
    ]
    other = logprobe(
        "show", "--tokens", RUN, "--steps", "10", "--sequence", listed[1]["sample_id"], "--home", home
    ).stdout
    assert f"sequence  {listed[1]['sample_id']};" in other
    assert (
        "has no step 99; choose one of 0 to 11"
        in logprobe("show", "--tokens", RUN, "--steps", "99", "--home", home, code=1).stderr
    )
    assert (
        "has no sequence 'none'"
        in logprobe("show", "--tokens", RUN, "--steps", "10", "--sequence", "none", "--home", home, code=1).stderr
    )
    assert "step 1" in logprobe("show", "--tokens", RUN, "--home", home).stdout  # without a step the worst recent one


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_and_a_token_cannot_make_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, colours in (("", True), ("1", False)):
        out = Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setenv("NO_COLOR", wanted)
        painted([("a\x1b[2J", 39), ("b", None)])
        assert out.getvalue() == ("\x1b[38;5;39ma\ufffd[2J\x1b[0mb\n" if colours else "a\ufffd[2Jb\n")
