"""The trainer's side of a directive: what it hears, when, and that nothing it asks can hurt it."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import eventually
from spool_contents import rows

from logprobe.collectors import Recorder
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives, encode
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.switch import CorrectionSwitch

MIS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0)
RUN = "run"
ON = Directives(RUN).issue(10, MIS, "growth")


@pytest.fixture
def file(tmp_path: Path) -> DirectiveFile:
    return DirectiveFile(tmp_path, RUN)


@pytest.fixture
def switch(tmp_path: Path):
    with CorrectionSwitch(tmp_path, RUN, poll_seconds=0.01) as switch:
        yield switch


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start waits for the first look, however busy the machine is."""
    monkeypatch.setattr("logprobe.collectors.switch._FIRST_SECONDS", 90.0)


@pytest.mark.usefixtures("patient")
def test_what_stands_there_at_the_start_is_known_at_once(tmp_path: Path, file: DirectiveFile) -> None:
    file.write(ON, None)
    with CorrectionSwitch(tmp_path, RUN) as switch:
        assert [switch.current(step) for step in (9, 10, 11)] == [None, MIS, MIS]


def private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def test_a_change_is_heard_and_the_kill_switch_too(switch: CorrectionSwitch, file: DirectiveFile) -> None:
    assert switch.current(10) is None
    assert (switch.version, switch.health["problems"]) == (0, {})
    file.write(ON, None)
    eventually(lambda: switch.current(10) == MIS)
    file.stop("ann")
    eventually(lambda: switch.current(10) is None)
    file.release()
    eventually(lambda: switch.current(10) == MIS)
    file.write(ON.issue(20, None, "off"), None)
    eventually(lambda: switch.current(20) is None)
    assert switch.current(19) == MIS


KEY = b"0123456789abcdef"
# What becomes of the file → the problem that is counted; the last good directive stays, and looking goes on
SPOILED: dict[str, tuple[Callable[[DirectiveFile], object], str]] = {
    "no document": (lambda file: file.path.write_bytes(b"{"), "directive_refused"),
    "an older version": (lambda file: file.write(Directives(RUN), None), "directive_refused"),
    "gone": (lambda file: file.path.unlink(), "directive_refused"),
    "a folder": (lambda file: (file.path.unlink(), file.path.mkdir()), "directive_unreachable"),
    "deeper than the parser goes": (lambda file: file.path.write_bytes(b"[" * 200_000), "directive_refused"),
    "halves of surrogate pairs": (
        lambda file: file.path.write_bytes(b'{"format": 1, "run": "\\ud800", "signature": "\\udfff"}'), "directive_refused"
    ),
    "a number that no float can hold": (
        lambda file: file.path.write_bytes(encode(ON, None).replace(b"0.5", b"1" + b"0" * 400)), "directive_refused"
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("spoiled", SPOILED)
def test_no_file_ends_the_looking_and_the_last_good_directive_stays(
    tmp_path: Path, switch: CorrectionSwitch, file: DirectiveFile, spoiled: str, key: bytes | None
) -> None:
    spoil, problem = SPOILED[spoiled]
    if key is not None:
        private(tmp_path / "directive.key", key)
    file.write(ON, key)
    eventually(lambda: switch.version == 1)
    spoil(file)
    eventually(lambda: switch.health["problems"].get(problem, 0) > 1)
    assert switch.current(10) == MIS
    assert switch.health["last_error"]
    file.stop("ann")
    eventually(lambda: switch.current(10) is None)


@pytest.mark.parametrize("key", ["comes later", "is taken away"])
def test_a_key_counts_from_when_it_was_seen(
    tmp_path: Path, switch: CorrectionSwitch, file: DirectiveFile, key: str
) -> None:
    if key == "is taken away":
        private(tmp_path / "directive.key", KEY)
    file.write(ON, KEY if key == "is taken away" else None)
    eventually(lambda: switch.version == 1)
    if key == "is taken away":
        (tmp_path / "directive.key").unlink()
    else:
        private(tmp_path / "directive.key", KEY)
    file.write(ON.issue(20, None, "forged"), None)
    eventually(lambda: "directive_refused" in switch.health["problems"])
    assert switch.current(20) == MIS
    file.write(ON.issue(20, None, "off"), KEY)
    eventually(lambda: switch.current(20) is None)


@pytest.mark.parametrize("step", [None, "ten", object(), np.arange(2), torch.arange(2), 1j])
def test_a_step_that_is_none_raises_nothing(switch: CorrectionSwitch, file: DirectiveFile, step: object) -> None:
    file.write(ON, None)
    eventually(lambda: switch.version == 1)
    assert switch.current(step) is None
    assert switch.health["problems"] == {"bad_step": 1}


@pytest.mark.parametrize("step", [10, 10.0, np.int64(10), torch.tensor(10), True + 9])
def test_every_kind_of_number_is_a_step(switch: CorrectionSwitch, file: DirectiveFile, step: object) -> None:
    file.write(ON, None)
    eventually(lambda: switch.version == 1)
    assert switch.current(step) == MIS
    assert switch.current(float("nan")) is None


def test_a_hanging_file_system_does_not_hold_up_the_start(tmp_path: Path) -> None:
    pipe = tmp_path / "directive.key"
    os.mkfifo(pipe)  # reading it waits until somebody writes
    with CorrectionSwitch(tmp_path, RUN, poll_seconds=0.01) as switch:
        assert switch.current(10) is None
    pipe.write_bytes(b"0123456789abcdef")  # lets the thread go


def test_without_a_thread_to_look_the_trainer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    switch = CorrectionSwitch(tmp_path, RUN)
    assert switch.current(10) is None
    assert "can't start new thread" in switch.health["last_error"]


def test_problems_become_health_records_of_the_recorder(tmp_path: Path, file: DirectiveFile) -> None:
    file.write(ON, None)
    file.path.write_bytes(b"{")
    with (
        Recorder(tmp_path, RUN) as recorder,
        CorrectionSwitch(tmp_path, RUN, recorder=recorder, poll_seconds=0.01),
    ):
        eventually(lambda: "directive_refused" in recorder.health["problems"])
    events = {row["event"]: row["component"] for row in rows(tmp_path, "health")}
    assert events.get("directive_refused") == "switch"


def test_a_forked_and_a_pickled_switch_hear_of_changes(
    tmp_path: Path, switch: CorrectionSwitch, file: DirectiveFile
) -> None:
    with pickle.loads(pickle.dumps(switch)) as copy:
        file.write(ON, None)
        eventually(lambda: copy.current(10) == MIS)
    eventually(lambda: switch.version == 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        first = switch.current(10) == MIS  # known from before the fork
        os.write(write, b"1" if first else b"0")
        with suppress(AssertionError):  # never into the rest of the tests
            eventually(lambda: switch.current(20) is None)
            os.write(write, b"1")
        os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    file.write(ON.issue(20, None, "off"), None)
    assert os.read(read, 1) == b"1"
    os.waitpid(child, 0)


def test_a_forgotten_switch_leaves_no_thread(tmp_path: Path) -> None:
    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "logprobe-switch"}

    before = threads()  # those of earlier tests may be ending meanwhile
    switch = CorrectionSwitch(tmp_path, RUN, poll_seconds=0.01)
    (thread,) = threads() - before
    del switch
    gc.collect()
    eventually(lambda: not thread.is_alive())


@pytest.mark.usefixtures("patient")
def test_a_mistake_shows_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGPROBE_RUN", raising=False)
    with pytest.raises(ConfigurationError, match="LOGPROBE_RUN"):
        CorrectionSwitch(tmp_path)
    with pytest.raises(ConfigurationError, match="neither a folder nor a bucket"):
        CorrectionSwitch("grpc://127.0.0.1:1", RUN)
    with pytest.raises(ConfigurationError, match="poll_seconds"):
        CorrectionSwitch(tmp_path, RUN, poll_seconds=0)
    private(tmp_path / "directive.key", b"short")
    with pytest.raises(ConfigurationError, match="16 bytes"):
        CorrectionSwitch(tmp_path, RUN)
