"""A node whose home has more run folders than one call asks about: kill switch, directives and marks reach every run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from processes import eventually
from relay_processes import port_of, prepare, receiver, relay

from logprobe.collectors.directives import DirectiveFile, stopped_runs
from logprobe.collectors.relay import protocol
from logprobe.collectors.relay.exchange import LIVE_SECONDS, Exchange
from logprobe.collectors.shipping.queue import ABANDONED_SECONDS, SpoolQueue
from logprobe.collectors.versions import MarkFile

LONG_AGO = time.time() - 2 * max(LIVE_SECONDS, ABANDONED_SECONDS)


def run_folders(home: Path, names: list[str], modified: float | None = None) -> None:
    for name in names:
        writer = home / "spool" / name / "writer"
        writer.mkdir(parents=True)
        (writer / "note").touch()  # no segment; keeps the folder from counting as abandoned
        for folder in (writer, writer.parent):
            if modified is not None:
                os.utime(folder, (modified, modified))


def asked(exchange: Exchange, queue: SpoolQueue) -> list[list[str]]:
    queue.waiting()
    return [list(document["runs"]) for document in exchange.documents(queue.lengths(), None, {})]


@pytest.mark.parametrize(
    ("number", "modified"), [(300, None), (3000, None), (3000, LONG_AGO)], ids=["300", "3000", "3000 at rest"]
)
def test_the_kill_switch_reaches_a_live_run_beside_many_others(
    tmp_path: Path, number: int, modified: float | None
) -> None:
    home, node = tmp_path / "service" / "home", tmp_path / "node"
    key = prepare(home)
    run_folders(node, [f"a-{i:04}" for i in range(number)], modified)
    run_folders(node, ["zz-live"])
    receiving = receiver(home).start()
    sending = relay(node, port_of(receiving), home, key).start()
    try:
        DirectiveFile(home, "zz-live").stop("somebody")
        eventually(DirectiveFile(node, "zz-live").stop_path.exists, "the kill switch reaches the node")
        delays, stops = [], []
        for _ in range(3):
            begun = time.monotonic()
            DirectiveFile(home, "zz-live").release()
            eventually(lambda: not DirectiveFile(node, "zz-live").stop_path.exists(), "and so does its end")
            set_at = time.monotonic()
            DirectiveFile(home, "zz-live").stop("somebody")
            eventually(DirectiveFile(node, "zz-live").stop_path.exists, "and the next one")
            stops.append(time.monotonic() - set_at)
            delays.append((time.monotonic() - begun) / 2)
        print(f"{number} other runs: {sorted(stops)[1]:.2f} s to the node, {sorted(delays)[1]:.2f} s with its end")
        first_of_others = "a-0000"
        DirectiveFile(home, first_of_others).stop("somebody")
        eventually(DirectiveFile(node, first_of_others).stop_path.exists, "runs at rest are asked about in turn")
    finally:
        sending.end()
        receiving.end()


def test_any_answer_sets_the_kill_switch_of_every_run_of_the_node(tmp_path: Path) -> None:
    names = [f"run-{i:04}" for i in range(2 * protocol.SYNC_RUNS + 1)]
    run_folders(tmp_path, names)
    exchange, queue = Exchange(tmp_path, "relay", None), SpoolQueue(tmp_path)
    queue.waiting()
    first, *_, last = list(exchange.documents(queue.lengths(), None, {}))
    (late,) = last["runs"]
    assert late not in first["runs"]
    exchange.follow(first, {"runs": {}, "stopped": [late, "elsewhere", "../../x"]})
    assert [path.stem for path in (tmp_path / "directives").iterdir()] == [late]
    assert stopped_runs(tmp_path) == [late]
    answer = {"runs": {late: {"marks": [], "cursor": 0, "stopped": False}}, "stopped": []}
    exchange.follow(last, answer)
    assert stopped_runs(tmp_path) == []


def test_live_runs_come_first_and_all_others_in_turn(tmp_path: Path) -> None:
    page = protocol.SYNC_RUNS
    run_folders(tmp_path, [f"old-{i:04}" for i in range(2 * page + 1)], LONG_AGO)
    run_folders(tmp_path, ["live-1", "live-2"])
    exchange, queue = Exchange(tmp_path, "relay", None, frozenset({"own"})), SpoolQueue(tmp_path)
    seen: set[str] = set()
    for _ in range(3):
        calls = asked(exchange, queue)
        assert calls[0][0] == "own"
        assert set(calls[0][1:3]) == {"live-1", "live-2"}
        assert all(len(call) <= page for call in calls)
        seen.update(*calls)
    assert len(seen) == 2 * page + 4


@pytest.mark.parametrize("number", [protocol.SYNC_RUNS - 1, protocol.SYNC_RUNS, protocol.SYNC_RUNS + 1])
def test_every_live_run_is_asked_about_in_every_turn(tmp_path: Path, number: int) -> None:
    names = [f"live-{i:04}" for i in range(number)]
    run_folders(tmp_path, names)
    exchange, queue = Exchange(tmp_path, "relay", None), SpoolQueue(tmp_path)
    for _ in range(2):
        calls = asked(exchange, queue)
        assert sorted(run for call in calls for run in call) == names
        assert len(calls) == (1 if number <= protocol.SYNC_RUNS else 2)


def test_marks_of_many_runs_fit_into_the_calls_that_the_service_takes(tmp_path: Path) -> None:
    """40 runs with 1,024 long marks each are 60 MB; the service takes 4 MiB a call."""
    line = json.dumps({"version": "1", "applied_at": 1.0, "engine": "e" * 1400})
    for i in range(40):
        path = MarkFile(tmp_path, f"run-{i:02}").path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'{line[:-1]}, "n": {n}}}\n' for n in range(protocol.MARKS)))
    exchange = Exchange(tmp_path, "relay", None)
    sent: dict[str, int] = {}
    for _ in range(400):
        for document in exchange.documents({}, None, {}):
            assert len(json.dumps(document).encode()) <= 4 << 20
            nothing = {"marks": [], "cursor": 0, "directives": None, "stopped": False}
            exchange.follow(document, {"runs": dict.fromkeys(document["runs"], nothing)})
            for run, said in document["runs"].items():
                sent[run] = sent.get(run, 0) + len(said["marks"])
        if sum(sent.values()) == 40 * protocol.MARKS:
            break
    assert sent == {f"run-{i:02}": protocol.MARKS for i in range(40)}


def test_folders_that_have_been_empty_for_a_day_are_removed(tmp_path: Path) -> None:
    run_folders(tmp_path, ["in-use"], LONG_AGO)
    for name, modified in (("abandoned", LONG_AGO), ("new", time.time())):
        (tmp_path / "spool" / name).mkdir()
        os.utime(tmp_path / "spool" / name, (modified, modified))
    SpoolQueue(tmp_path).waiting()
    assert {path.name for path in (tmp_path / "spool").iterdir()} == {"in-use", "new"}
