"""`logprobe ray up|down` on a real Ray of several raylets, each with a folder of its own: every node's records reach the service.

Run by `make campaign NAME=ray`.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from processes import end, eventually, start_service
from ray.cluster_utils import Cluster
from relay_processes import prepare, receiving
from segments import RUN, records, trained

from logprobe.app import cli
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.elsewhere import Briefly
from logprobe.monitor.home import Home
from logprobe.monitor.relay.files import RelayFiles

_until = partial(eventually, seconds=300)
SEQUENCES = 8


def test_every_node_has_a_relay_until_it_is_taken_down(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, nodes = tmp_path / "service" / "home", tmp_path / "nodes"
    token = prepare(home)
    service = start_service(home)
    try:
        with receiving(home) as port:
            to = [
                f"--to=grpc+tls://localhost:{port}",
                f"--ca={RelayFiles.of(Home(home)).authority}",
                f"--token={token}",
            ]
            up = ["up", f"--home={nodes / '{node}'}", *to]
            states = _command(cluster, capsys, up)
            assert sorted(state["node"] for state in states) == sorted(_nodes(cluster))
            assert all(Path(state["home"]) == nodes / state["node"] for state in states)
            written = sum(_record(nodes / state["node"], step) for step, state in enumerate(states))
            _until(lambda: _stored(home) == written)

            again = _command(cluster, capsys, up)  # nothing to do
            assert [state["pid"] for state in again] == [state["pid"] for state in states]

            os.kill(states[0]["pid"], signal.SIGKILL)
            actor = psutil.Process(states[1]["pid"]).parent()
            assert actor is not None
            actor.kill()  # Ray starts it again, and it starts a relay
            written += sum(_record(nodes / state["node"], 10 + step) for step, state in enumerate(states))
            _until(lambda: _stored(home) == written)
            _until(lambda: not _runs(states[1]["pid"]))

            lost = next(iter(cluster.worker_nodes))
            cluster.remove_node(lost, allow_graceful=False)
            cluster.add_node(num_cpus=1)
            cluster.wait_for_nodes()
            placed = _command(cluster, capsys, up)
            assert sorted(state["node"] for state in placed) == sorted(_nodes(cluster))
            written += sum(_record(nodes / state["node"], 20 + step) for step, state in enumerate(placed))

            down = _command(cluster, capsys, ["down"])  # what was just recorded is sent first
            assert {state["node"] for state in down if state["segments"] == 0} >= set(_nodes(cluster))
            _until(lambda: _stored(home) == written)
            assert _command(cluster, capsys, ["down"]) == []
            _until(lambda: not any(_runs(state["pid"]) for state in (*states, *placed)))
    finally:
        end(service)


def _command(cluster: Cluster, capsys: pytest.CaptureFixture[str], words: list[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["ray", *words, "--ray", cluster.address, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def _nodes(cluster: Cluster) -> list[str]:
    ray.init(address=cluster.address, log_to_driver=False, ignore_reinit_error=True)
    try:
        return [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


def _record(home: Path, step: int) -> int:
    rows = [trained(f"{home.name}-{step}-{number}", step) for number in range(SEQUENCES)]
    SpoolWriter(home, RUN, f"w{step}").write("training", records("training", *rows))
    return len(rows)


def _stored(home: Path) -> int:
    return sum(row["sequences"] or 0 for row in Briefly(str(home)).read("app_runs").to_pylist())


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
