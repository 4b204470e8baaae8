"""Many nodes, one bucket, one service: does it keep up, and what do all of them take of the machine and ask of the server?

    make campaign NAME=bucket-many ARGS="--nodes 64 --writers 4 --seconds 120"

A node is a process with as many recorders as a node has ranks, and a shipper of its own. SeaweedFS counts the requests.
Exit code 1 if something is lost or stored twice, or if what was recorded is not in the store soon after.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import numpy as np
import psutil
from bucket_servers import Server, address, environment, serving
from processes import connected, end, eventually, start_service
from spool_contents import waiting

from logprobe.collectors import Recorder

ADDRESS = f"{address('weed')}/team"
RUNS, SEQUENCES, TOKENS = 4, 8, 512
PATIENCE = 300.0
SOON = 15.0  # seconds after the last flush
STORED = "SELECT count(*) AS n, count(DISTINCT (run, sample_id)) AS different FROM training_sequences"


def node(number: int, folder: Path, writers: int, period: float, told: Connection) -> None:
    """One node: a step of every rank per period, until it is told to end; says how many sequences were acknowledged."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    rng = np.random.default_rng(number)
    rollout = -rng.exponential(1.0, (SEQUENCES, TOKENS)).astype(np.float32)
    content = {
        "token_ids": rng.integers(0, 50_000, rollout.shape),
        "rollout_logprobs": rollout,
        "trainer_logprobs": np.minimum(rollout + rng.normal(0, 0.01, rollout.shape), 0).astype(np.float32),
        "mask": np.ones(rollout.shape, bool),
    }
    recorders = [Recorder(ADDRESS, f"run {number % RUNS}", rank=writers * number + rank) for rank in range(writers)]
    accepted = step = 0
    told.recv()
    time.sleep(rng.uniform(0, period))  # nodes do not step together
    while not told.poll(period):
        for rank, recorder in enumerate(recorders):
            names = [f"{number}/{rank}/{step}/{row}" for row in range(SEQUENCES)]
            accepted += SEQUENCES * bool(recorder.training(step=step, sample_ids=names, **content))
        step += 1
    flushed = [recorder.flush(PATIENCE) for recorder in recorders]
    told.send(accepted if all(flushed) else None)
    for recorder in recorders:
        recorder.close()


def requests(server: Server) -> Counter[str]:
    """Requests that the server has answered, by kind."""
    counted: Counter[str] = Counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("SeaweedFS_s3_request_total{"):
                labels, _, value = line.rpartition(" ")
                counted[labels.partition('type="')[2].partition('"')[0]] += int(float(value))
    return counted


def spent(parts: dict[str, list[psutil.Process]]) -> dict[str, float]:
    """Seconds of processor that each part has taken."""
    seconds = dict.fromkeys(parts, 0.0)
    for part, processes in parts.items():
        for process in processes:
            with suppress(psutil.Error):
                times = process.cpu_times()
                seconds[part] += times.user + times.system
    return seconds


def shippers() -> list[psutil.Process]:
    """Shippers of the nodes."""
    words = {"logprobe.collectors.shipping", ADDRESS}
    return [each for each in psutil.process_iter(["cmdline"]) if words <= {*(each.info["cmdline"] or ())}]


def oldest(folder: Path) -> tuple[int, float]:
    """Segments that wait on nodes, and for how long the oldest has."""
    now, stamps = time.time(), []
    for home in folder.glob("node*"):
        for path in waiting(next((home / "state").rglob("spool"), home).parent):
            with suppress(OSError):
                stamps.append(path.stat().st_mtime)
    return len(stamps), max((now - stamp for stamp in stamps), default=0.0)


def run(folder: Path, arguments: argparse.Namespace, server: Server) -> bool:
    """Return whether the service kept up and has everything once."""
    os.environ.update(environment(server.port, "weed"), OMP_NUM_THREADS="1")
    home = folder / "home"
    service = start_service(home, "--bucket", ADDRESS)
    context = multiprocessing.get_context("fork")
    pipes, nodes = [], []
    for number in range(arguments.nodes):
        ours, theirs = context.Pipe()
        place = (number, folder / f"node{number}", arguments.writers, arguments.period, theirs)
        nodes.append(context.Process(target=node, args=place, daemon=True))
        nodes[-1].start()
        pipes.append(ours)
    try:
        eventually(lambda: len(shippers()) == arguments.nodes, "each node has its shipper", PATIENCE)
        with connected(home) as reader:
            for pipe in pipes:
                pipe.send("begin")
            time.sleep(arguments.warm_up)
            ours = psutil.Process(service.pid)
            parts = {
                "service": [ours, *ours.children(recursive=True)],
                "server": [psutil.Process(server.process.pid)] if server.process else [],
                "shippers": shippers(),
                "recorders": [psutil.Process(each.pid) for each in nodes],
            }
            began, before, asked = time.monotonic(), spent(parts), requests(server)
            looks = []
            while time.monotonic() - began < arguments.seconds:
                time.sleep(2)
                looks.append(oldest(folder))
            seconds = time.monotonic() - began
            cores = {part: (value - before[part]) / seconds for part, value in spent(parts).items()}
            rates = {kind: count / seconds for kind, count in (requests(server) - asked).items()}
            for pipe in pipes:
                pipe.send("end")
            accepted = [pipe.recv() for pipe in pipes]
            flushed = time.monotonic()
            assert None not in accepted, "a flush was not acknowledged"
            wanted = sum(accepted)
            eventually(lambda: reader.query(STORED)["n"][0].as_py() >= wanted, "all is stored", PATIENCE)
            late = time.monotonic() - flushed
            (found,) = reader.query(STORED).to_pylist()
    finally:
        for process in [*nodes, *shippers()]:
            with suppress(psutil.Error):
                process.terminate()
        end(service)
    waits = [age for _, age in looks]
    tokens = arguments.nodes * arguments.writers * SEQUENCES * TOKENS / arguments.period
    print(f"{arguments.nodes} nodes x {arguments.writers} writers, {RUNS} runs, {tokens / 1e6:.2f} Mtok/s")
    print("cores: " + ", ".join(f"{part} {value:.2f}" for part, value in cores.items()))
    print("requests/s: " + ", ".join(f"{kind} {rate:.1f}" for kind, rate in sorted(rates.items()) if rate > 0.05))
    print(
        f"oldest on a node: median {np.median(waits):.1f} s, at most {max(waits):.1f} s; segments at most {max(n for n, _ in looks)}"
    )
    lost, doubled = wanted - found["different"], found["n"] - found["different"]
    print(f"{wanted:,} acknowledged, {lost} lost, {doubled} doubled; all stored {late:.1f} s after the last flush")
    return not lost and not doubled and late <= SOON


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--period", type=float, default=5.0, help="seconds of a step")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warm-up", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many.") as name, serving(Path(name) / "server", "weed") as server:
        return 0 if run(Path(name), arguments, server) else 1


if __name__ == "__main__":
    sys.exit(main())
