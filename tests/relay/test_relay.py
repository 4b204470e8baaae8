"""A relay between two homes that share no folder: segments, marks, directives, notes, and how far the node is behind."""

from __future__ import annotations

import json
from pathlib import Path

from network import stored, waiting
from processes import connected, end, eventually, logprobe, record, start_service
from relay_processes import Process, port_of, prepare, receiver, relay

from logprobe.collectors import weights
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.collectors.versions import MarkFile


def test_what_a_node_records_arrives_once_and_marks_and_directives_travel_both_ways(tmp_path: Path) -> None:
    home, first, second = tmp_path / "service" / "home", tmp_path / "first", tmp_path / "second"
    key = prepare(home)
    service, receiving = start_service(home), receiver(home).start()
    relays: list[Process] = []
    try:
        port = port_of(receiving)
        recorder = record(first, "run", close=False)
        record(second, "run", steps=range(10, 12))
        relays = [relay(node, port, home, key).start() for node in (first, second)]
        with connected(home) as reader:
            eventually(lambda: len(stored(reader, "run")) == 20, "both nodes' sequences are stored")
            assert len(set(stored(reader, "run"))) == 20

            assert weights.mark(7, step=3, home=first, run="run")
            eventually(lambda: _versions(second) == ["7"], "a mark made on one node reaches the other")
            assert _versions(home) == ["7"]

            DirectiveFile(home, "run").write(Directives("run").issue(5, None, "test"), None)
            with CorrectionSwitch(first, "run", poll_seconds=0.05) as switch:
                eventually(lambda: switch.version == 1, "a directive reaches the node")
                DirectiveFile(home, "run").stop("somebody")
                eventually(DirectiveFile(first, "run").stop_path.exists, "the kill switch reaches the node")
                DirectiveFile(home, "run").release()
                eventually(lambda: not DirectiveFile(first, "run").stop_path.exists(), "and so does its end")

            recorder.close()
            eventually(lambda: _nodes(reader), "the service knows how far the node is behind, and what its clock shows")
        eventually(lambda: not waiting(first), "the spool is empty")
        status = json.loads(logprobe("status", "run", "--home", home, "--json").stdout)
        assert [row["node"] for row in status["nodes"]]
        assert "nodes" in logprobe("status", "run", "--home", home).stdout
    finally:
        for each in [*relays, receiving]:
            each.end()
        end(service)


def _versions(home: Path) -> list[str]:
    return [mark.version for mark in MarkFile(home, "run").read_new()]


def _nodes(reader):
    """Those with nothing to send whose clock is right; a report that was long on its way shows another one, and is followed by others."""
    rows = "SELECT * FROM relay_nodes WHERE segments = 0 AND version IS NOT NULL AND abs(clock_ahead_seconds) < 5"
    return reader.query(rows).to_pylist()
