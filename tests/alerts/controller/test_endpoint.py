"""A real service and a trainer that shares no folder with it: commands over its endpoint, directives through it, also after a restart."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import end, eventually, logprobe, record, service, start_service
from relay_processes import port_of, prepare, receiver, token

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.relay import tokens
from logprobe.monitor.relay.files import RelayFiles

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
            logprobe("mis", RUN, "on", "--force", "--by", "ann", "--home", home)
            config = eventually(lambda: switch.current(1000), "the directive arrived")
            assert (config.is_mode, switch.version) == ("mask", 1)
        eventually(lambda: switch.health["problems"].get("directive_unreachable"), "the silence is noticed")
        assert switch.current(1000) == config  # the last good one
        with service(home, f"--port={port}"):
            eventually(lambda: "toy" in runs(home), "the service is back")
            logprobe("mis", RUN, "stop", "--home", home)
            eventually(lambda: switch.current(1000) is None, "the kill switch arrived")
            shown = json.loads(logprobe("mis", RUN, "--json", "--home", home).stdout)
            assert (shown["phase"], shown["stopped"]) == ("issued", True)
            assert [action["name"] for action in shown["actions"]] == ["switched_on", "stopped"]
            assert "ann" in shown["actions"][0]["words"]
            assert "stopped" in logprobe("mis", RUN, "--home", home).stdout
            logprobe("mis", "another", "--home", home, code=1)


def test_without_the_token_or_with_another_key_nothing_is_believed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN)
    record(home, RUN, steps=range(10))
    process = start_service(home)
    try:
        eventually(lambda: "toy" in runs(home), "the run is known")
        port = port_in(home)
        logprobe("mis", RUN, "on", "--force", "--home", home)
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


def test_over_tls_the_receiver_answers_also_without_a_service(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGPROBE_DIRECTIVE_KEY", "a key that both sides know")
    files, elsewhere = RelayFiles.of(Home(home)), tmp_path / "elsewhere" / "home"
    key = prepare(home, runs=("to?",))
    prepare(elsewhere)
    kill_switch = DirectiveFile(home, RUN)
    record(home, RUN, steps=range(10))
    process, receiving = start_service(home), receiver(home).start()
    try:
        address = f"grpc+tls://localhost:{port_of(receiving)},ca={files.authority},token={key}"
        eventually(lambda: RUN in runs(home), "the run is known")
        with CorrectionSwitch(address, RUN, poll_seconds=0.05) as switch:
            assert switch.current(1000) is None
            logprobe("mis", RUN, "on", "--force", "--home", home)
            config = eventually(lambda: switch.current(1000), "the directive arrived")
            assert (config.is_mode, switch.version) == ("mask", 1)
            process.terminate()
            process.wait(120)
            kill_switch.stop("ann")
            eventually(lambda: switch.current(1000) is None, "the kill switch arrived")
            kill_switch.release()
            eventually(lambda: switch.current(1000) == config, "it is released")

            tokens.save(files.tokens, tokens.load(files.tokens).revoke("team"))
            eventually(lambda: "no longer valid" in str(switch.health["last_error"]), "the token was revoked")
            assert switch.current(1000) == config  # the last good one
            kill_switch.stop("ann")
            token(home, "team", (RUN,))  # in the same file
            eventually(lambda: switch.current(1000) is None, "another token is read without a restart")
        kill_switch.release()
        for more, signed, words in (
            (
                f",ca={RelayFiles.of(Home(elsewhere)).authority}",
                "a key that both sides know",
                "certificate verify failed",
            ),
            (f",token={token(home, 'other', ('theirs',))}", "a key that both sides know", "not one of its own"),
            ("", "a key only the trainer has", "signature is missing or wrong"),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("LOGPROBE_DIRECTIVE_KEY", signed)
                with CorrectionSwitch(address + more, RUN, poll_seconds=0.05) as switch:
                    eventually(lambda switch=switch, words=words: words in str(switch.health["last_error"]), words)
                    assert switch.current(1000) is None
    finally:
        receiving.end()
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
