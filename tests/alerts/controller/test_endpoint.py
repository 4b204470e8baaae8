"""A real service and a trainer that shares no folder with it: commands over its endpoint, directives through it, also after a restart."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import end, eventually, logprobe, record, service, start_service

from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

RUN = "toy"
TOKEN = "0123456789abcdef0123456789abcdef"


def test_a_trainer_elsewhere_hears_of_directives_through_the_service(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN)
    monkeypatch.setenv("LOGPROBE_DIRECTIVE_KEY", "a key that both sides know")
    record(home, RUN, steps=range(10))
    with ExitStack() as stack:
        with service(home):
            eventually(lambda: "toy" in runs(home), "the run is known")
            port = port_in(home)
            switch = stack.enter_context(CorrectionSwitch(f"grpc://127.0.0.1:{port}", RUN, poll_seconds=0.05))
            assert switch.current(1000) is None
            logprobe("correct", RUN, "on", "--force", "--home", home, LOGNAME="ann")
            config = eventually(lambda: switch.current(1000), "the directive arrived")
            assert (config.is_mode, switch.version) == ("mask", 1)
        eventually(lambda: switch.health["problems"].get("directive_unreachable"), "the silence is noticed")
        assert switch.current(1000) == config  # the last good one
        with service(home, f"--port={port}"):
            eventually(lambda: "toy" in runs(home), "the service is back")
            logprobe("correct", RUN, "off", "--home", home)
            eventually(lambda: switch.current(1000) is None, "the kill switch arrived")
            shown = json.loads(logprobe("correct", RUN, "--json", "--home", home).stdout)["state"]
            assert (shown["phase"], shown["stopped"]) == ("issued", True)
            assert [action["name"] for action in shown["actions"]] == ["switched_on", "stopped"]
            assert "ann" in shown["actions"][0]["words"]
            assert "stopped" in logprobe("correct", RUN, "--home", home).stdout
            logprobe("correct", "another", "--home", home, code=1)


def test_without_the_token_or_with_another_key_nothing_is_believed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN)
    record(home, RUN, steps=range(10))
    process = start_service(home)
    try:
        eventually(lambda: "toy" in runs(home), "the run is known")
        port = port_in(home)
        logprobe("correct", RUN, "on", "--force", "--home", home)
        for variable, value, problem in (
            ("LOGPROBE_TOKEN", "not the token at all", "directive_unreachable"),
            ("LOGPROBE_DIRECTIVE_KEY", "a key only the trainer has", "directive_refused"),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(variable, value)
                with CorrectionSwitch(f"grpc://127.0.0.1:{port}", RUN, poll_seconds=0.05) as switch:
                    eventually(lambda switch=switch, problem=problem: switch.health["problems"].get(problem), problem)
                    assert switch.current(1000) is None
                    assert TOKEN not in switch.health["last_error"]
    finally:
        end(process)


def port_in(home: Path) -> int:
    """Where the home's service listens."""
    info = Home(home).service_info()
    assert info is not None
    return info.port


def runs(home: Path) -> list[str]:
    """Runs with metrics, as the service knows them; none while it does not answer."""
    try:
        with connect(home) as reader:
            return reader.read("controller_runs")["run"].to_pylist()
    except ConnectionError:
        return []
