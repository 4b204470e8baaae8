"""A real service and a trainer: commands over its endpoint, directives in its folder, also after a restart."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import eventually, logprobe, record, service

from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.reader import connect

RUN = "toy"


def test_a_trainer_hears_of_what_is_commanded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_DIRECTIVE_KEY", "a key that both sides know")
    record(home, RUN, steps=range(10))
    with ExitStack() as stack:
        with service(home):
            eventually(lambda: "toy" in runs(home), "the run is known")
            switch = stack.enter_context(CorrectionSwitch(home, RUN, poll_seconds=0.05))
            assert switch.current(1000) is None
            logprobe("correct", RUN, "on", "--force", "--home", home, LOGNAME="ann")
            config = eventually(lambda: switch.current(1000), "the directive arrived")
            assert (config.is_mode, switch.version) == ("mask", 1)
        assert switch.current(1000) == config  # without a service, too
        with service(home):
            eventually(lambda: "toy" in runs(home), "the service is back")
            logprobe("correct", RUN, "off", "--home", home)
            eventually(lambda: switch.current(1000) is None, "the kill switch arrived")
            shown = json.loads(logprobe("correct", RUN, "--json", "--home", home).stdout)["state"]
            assert (shown["phase"], shown["stopped"]) == ("issued", True)
            assert [action["name"] for action in shown["actions"]] == ["switched_on", "stopped"]
            assert "ann" in shown["actions"][0]["words"]
            assert "stopped" in logprobe("correct", RUN, "--home", home).stdout
            logprobe("correct", "another", "--home", home, code=1)


def runs(home: Path) -> list[str]:
    """Runs with metrics, as the service knows them; none while it does not answer."""
    try:
        with connect(home) as reader:
            return [row["run"] for row in reader.read("runs_now").to_pylist() if row["step"] is not None]
    except ConnectionError:
        return []
