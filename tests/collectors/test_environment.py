"""Variables of the environment: unknown ones are named, and stop no host."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from spool_contents import health_events

from logprobe.app.doctor import examine
from logprobe.collectors import Recorder, environment


@pytest.fixture(autouse=True)
def notices(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is said in this test."""
    caplog.set_level(logging.WARNING)
    return caplog


@pytest.mark.parametrize(
    ("text", "injected", "prompts", "problem"),
    [
        ("", False, None, ""),
        ("inject", True, None, ""),
        ("inject=0", False, None, ""),
        (" inject , prompts=1 ", True, "1", ""),
        ("injct", False, None, "injct"),
        ("1", False, None, "LOGPROBE_RECORD: 1: not known"),
        ("harmless=a,b", False, None, "LOGPROBE_RECORD: b: not known and without effect; known are quiet, raw, inject, prompts, harmless, prefix"),
    ],
)  # fmt: skip
def test_options_of_recording(text: str, injected: bool, prompts: str | None, problem: str) -> None:
    given = {"LOGPROBE_RECORD": text}
    assert (environment.injects(given), environment.option("prompts", given)) == (injected, prompts)
    assert problem in environment.unknown_options(given)
    assert bool(problem) == bool(environment.unknown_options(given))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LOGPROBE_HOEM", "did you mean LOGPROBE_HOME?"),
        ("LOGPROBE_RUN_NAME", "did you mean LOGPROBE_RUN?"),
        ("LOGPROBE_HOME_FILE", "did you mean LOGPROBE_HOME?"),
        ("LOGPROBE_QX", "see docs/reference.md"),
        ("LOGPROB_HOME", "did you mean LOGPROBE_HOME?"),
        ("LOG_PROBE_RUN", "did you mean LOGPROBE_RUN?"),
    ],
)
def test_an_unknown_name_is_named_with_the_nearest_known_one(name: str, meant: str) -> None:
    assert environment.unknown({name: "canary", "HOME": "/"}) == [f"{name} is not a variable of logprobe: {meant}"]


def test_what_is_known_or_of_kubernetes_is_not_unknown() -> None:
    known = (*environment.VARIABLES, *environment.PASSED)
    # Of a service `logprobe`, as docs/examples has it, and of one `logprobe-x`.
    of_pods = (
        "LOGPROBE_SERVICE_HOST",
        "LOGPROBE_SERVICE_PORT",
        "LOGPROBE_SERVICE_PORT_DASHBOARD",
        "LOGPROBE_PORT",
        "LOGPROBE_PORT_8501_TCP",
        "LOGPROBE_PORT_8501_TCP_ADDR",
        "LOGPROBE_X_SERVICE_HOST",
        "LOGPROBE_X_PORT_7070_TCP_PROTO",
    )
    assert environment.unknown(dict.fromkeys((*known, *of_pods, "LOGPROBER"), "raw")) == []


def test_a_recorder_goes_on_and_says_which_name_is_unknown(
    home: Path, monkeypatch: pytest.MonkeyPatch, notices: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOGPROBE_RECROD", "0.1")
    monkeypatch.setenv("LOGPROBE_REPLICAS", "a")
    monkeypatch.setenv("LOGPROBE_RECORD", "rwa=0.1")
    with Recorder(home, "run") as recorder:
        assert recorder.step(1, loss=0.5)
        assert recorder.flush()
    (event,) = health_events(home)["unknown_variable"]
    assert "LOGPROBE_RECROD is not a variable of logprobe: did you mean LOGPROBE_RECORD?" in event["message"]
    assert "did you mean LOGPROBE_REPLICA?" in event["message"]
    assert "LOGPROBE_RECORD: rwa: not known and without effect" in event["message"]
    assert "LOGPROBE_RECROD" in notices.text
    assert [finding.text for finding in examine(None) if "LOGPROBE_REPLICAS" in finding.text]


PLUGINS = {
    "vllm": "from logprobe.collectors.vllm.plugin import register; register()",
    "sglang": "from logprobe.collectors.sglang import plugin; plugin()",
    "verl": "import logprobe.collectors.integrations.verl_plugin",
}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_home_that_is_misspelt_is_said_by_each_plugin(plugin: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{PLUGINS[plugin]}; print('goes on')"]
    variables = {"LOGPROBE_HOEM": str(tmp_path), "LOGPROBE_RUN": "r"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "goes on\n"
    assert "nothing is recorded, as LOGPROBE_HOME is not set; LOGPROBE_HOEM" in done.stderr
    assert "did you mean LOGPROBE_HOME?" in done.stderr


def test_without_a_name_like_it_nothing_is_said(notices: pytest.LogCaptureFixture) -> None:
    assert not environment.wanted({"LOGPROBE_RUN": "r"})
    assert notices.text == ""
