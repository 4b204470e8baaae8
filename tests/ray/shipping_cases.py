"""`logprobe up --ray` on a real Ray of several raylets, each with a folder of its own: every node's records arrive once.

Run by `make campaign NAME=ray`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
from processes import end, eventually, start_service
from ray.cluster_utils import Cluster
from segments import RUN, records, trained
from spool_contents import waiting

from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.reader import connect

_until = partial(eventually, seconds=300)
SEQUENCES = 8
KILLS = 12


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two raylets."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # with Ray's 15 actors do not begin for minutes on a busy machine
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def landing(cluster: Cluster, home: Path, nodes: str) -> subprocess.Popen[bytes]:
    """The process that `logprobe up --ray` starts."""
    command = [sys.executable, "-m", "logprobe.app.processes.ray_shipping", "--home", str(home), "--nodes", nodes]
    return subprocess.Popen([*command, "--cluster", cluster.address])


def test_every_node_ships_whatever_is_killed_and_whichever_node_comes_and_goes(
    cluster: Cluster, tmp_path: Path
) -> None:
    home, nodes = tmp_path / "service" / "home", tmp_path / "nodes"
    written: list[str] = []
    running = {"service": start_service(home), "landing": landing(cluster, home, str(nodes / "{node}"))}
    starts = {"service": lambda: start_service(home), "landing": lambda: landing(cluster, home, str(nodes / "{node}"))}
    chosen = random.Random(47)
    try:
        with joined(cluster):
            _until(lambda: len(list(nodes.glob("*"))) == 2, "an actor on every node")
            for name in sorted(nodes.iterdir()):
                written += record(name, 0)
            _until(lambda: stored(home) == sorted(written), "all is stored")
            DirectiveFile(home, RUN).write(Directives(RUN).issue(5, None, "test"), None)
            for name in nodes.iterdir():
                _until(partial(told, name), "nodes are told")
            staying = sorted(nodes.iterdir())
            for step in range(1, KILLS + 1):
                for name in staying:
                    written += record(name, step)
                what = chosen.choice(["Carrier", "Landing", "service", "landing"])
                if what in running:
                    running[what].kill()
                    running[what].communicate()
                    time.sleep(0.5)
                    running[what] = starts[what]()
                else:
                    kill_actor(what)
                if step == KILLS // 2:
                    added = cluster.add_node(num_cpus=1)  # an autoscaler adds one, and takes it away
                    _until(lambda: len(list(nodes.glob("*"))) == 3, "an actor on the new node")
                    (new,) = (name for name in nodes.iterdir() if not waiting(name) and not (name / "spool").exists())
                    written += record(new, step)
                    _until(partial(shipped, new), "the new node has shipped")
                    cluster.remove_node(added)
            _until(lambda: not any(map(waiting, staying)), "nothing waits on any node")
            _until(lambda: len(stored(home)) >= len(written), "all is stored")
            time.sleep(3)
            assert stored(home) == sorted(written), "none lost, none doubled"
        assert not list((home / "quarantine").rglob("*.arrow"))
    finally:
        for process in running.values():
            print(end(process))


def test_a_folder_that_is_the_services_own_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    """Shipped into itself, a segment would be removed once it was put."""
    home = tmp_path / "home"
    process = landing(cluster, home, str(home))
    try:
        with joined(cluster):
            _until((home / "landing.id").exists)
            written = record(home, 1)
            time.sleep(20)
            assert len(waiting(home)) == 1
    finally:
        end(process)
    service = start_service(home)
    try:
        _until(lambda: stored(home) == sorted(written))
    finally:
        end(service)


@contextmanager
def joined(cluster: Cluster) -> Iterator[None]:
    ray.init(address=cluster.address, log_to_driver=False, ignore_reinit_error=True)
    try:
        yield
    finally:
        ray.shutdown()


def told(node: Path) -> bool:
    return DirectiveFile(node, RUN).read(None).version == 1


def shipped(node: Path) -> bool:
    return not waiting(node)


def kill_actor(kind: str) -> None:
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.info["name"].startswith("ray::") and kind in process.info["name"]:
                os.kill(process.pid, signal.SIGKILL)
                return


def record(home: Path, step: int) -> list[str]:
    names = [f"{home.name}-{step}-{number}" for number in range(SEQUENCES)]
    SpoolWriter(home, RUN, f"w-{step}").write("training", records("training", *(trained(name, step) for name in names)))
    return names


def stored(home: Path) -> list[str]:
    """Sample ids in the store; none while no service answers."""
    with suppress(LogprobeError), connect(home) as reader:
        return list(
            reader.query("SELECT sample_id FROM training_sequences ORDER BY sample_id")["sample_id"].to_pylist()
        )
    return []
