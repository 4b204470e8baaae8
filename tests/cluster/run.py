"""Many nodes, one service, no shared folder, things killed at random: does the ledger have what `flush()` acknowledged, once?

    make campaign NAME=cluster ARGS="--nodes 64 --kills 30 --seed 1 --calls 20"

Every node is a collector in a process of its own with a spool of its own, which starts its relay; relays reach the receiver through
proxies that delay, cut, and stop in the middle. Exit code 1 when something acknowledged is missing, or something is stored twice.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import node_program
from network import Proxy, stored, waiting
from processes import connected, end, eventually, start_service
from relay_processes import Process, port_of, prepare, receiver

from logprobe.monitor.home import Home
from logprobe.monitor.relay.files import RelayFiles

RUN = "cluster"
PATIENCE = 1500.0


@dataclass
class Cluster:
    """Everything that runs."""

    folder: Path
    arguments: argparse.Namespace
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        self.home = self.folder / "service" / "home"
        self.key = prepare(self.home)
        self.service = start_service(self.home)
        self.receiver = receiver(self.home).start()
        port = port_of(self.receiver)
        self.receiver.command[-1] = str(port)
        self.proxies = [Proxy(port, seed=number) for number in range(4)]
        self.nodes = [self.folder / f"node{number:02d}" for number in range(self.arguments.nodes)]
        self.trainers = [self.trainer(number).start() for number in range(len(self.nodes))]

    def trainer(self, number: int) -> Process:
        a, node = self.arguments, self.nodes[number]
        numbers = [str(each) for each in (a.calls, a.sequences, a.tokens, a.pause)]
        command = [sys.executable, node_program.__file__, str(node), RUN, node.name, *numbers]
        environment = {
            "LOGPROBE_SERVICE": (
                f"grpc+tls://localhost:{self.proxies[number % len(self.proxies)].port},"
                f"ca={RelayFiles.of(Home(self.home)).authority},token={self.key},node={node.name}"
            ),
            "OMP_NUM_THREADS": "1",
        }
        return Process(command, environment, self.folder / f"{node.name}.log")

    def hurt(self) -> None:
        """One thing, at random."""
        what = self.chance.choice(
            ["relay", "relay", "receiver", "service", "node", "node", "cut", "delay", "stop in the middle"]
        )
        proxy = self.chance.choice(self.proxies)
        if what == "relay":
            what = self._kill_relay()
        elif what == "receiver":
            self.receiver.kill()
            self.receiver.start()
        elif what == "service":
            self.service.kill()
            self.service.wait()
            self.service = start_service(self.home)
        elif what == "node":
            number = self.chance.randrange(len(self.nodes))
            self.trainers[number].kill()
            self.trainers[number].start()  # another life; what the first one left in its spool is still to be sent
        elif what == "delay":
            proxy.delay = self.chance.choice([0.0, 0.02])
        else:
            proxy.cut_after = None if what == "cut" else 30_000
            proxy.cut()
        self.done[what] += 1

    def _kill_relay(self) -> str:
        number = self.chance.randrange(len(self.nodes))
        inode = (
            f":{(self.nodes[number] / 'relay.lock').stat().st_ino}"
            if (self.nodes[number] / "relay.lock").exists()
            else "?"
        )
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()
            if parts[1:4:2] == ["FLOCK", "WRITE"] and parts[5].endswith(inode):
                os.kill(int(parts[4]), 9)
                return "relay"
        return "relay that did not run"

    def finish(self) -> None:
        """Lets everything come to its end, and starts a relay where the last one was killed after its collectors had ended."""
        for proxy in self.proxies:
            proxy.delay, proxy.cut_after = 0.0, None
        for trainer in self.trainers:
            assert trainer.process is not None
            if trainer.process.wait(PATIENCE):
                raise AssertionError(trainer.words[-2000:])
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and any(map(waiting, self.nodes)):
            time.sleep(0.5)
        left = [number for number, node in enumerate(self.nodes) if waiting(node)]
        for number in left:
            command = [
                sys.executable,
                "-m",
                "logprobe.collectors.relay",
                "--home",
                str(self.nodes[number]),
                "--with-collectors",
            ]
            subprocess.run(
                command, env={**os.environ, **self.trainer(number).environment}, check=False, timeout=PATIENCE
            )
        eventually(lambda: not any(map(waiting, self.nodes)), "all spools are empty", PATIENCE)

    def stop(self) -> None:
        for trainer in self.trainers:
            trainer.end()
        self.receiver.end()
        for proxy in self.proxies:
            proxy.close()
        end(self.service)


def judge(cluster: Cluster) -> tuple[str, bool]:
    """One line about the ledger, and whether it is as it must be."""
    acknowledged = [name for node in cluster.nodes for name in node_program.acknowledged(node)]
    with connected(cluster.home) as reader:
        eventually(lambda: not waiting(cluster.home), "everything is ingested", PATIENCE)
        found = Counter(stored(reader, RUN))
        nodes = reader.query("SELECT count(*) AS n, max(oldest_seconds) AS oldest FROM relay_nodes").to_pylist()[0]
    lost = [name for name in acknowledged if name not in found]
    twice = [name for name, count in found.items() if count > 1]
    tokens = len(found) * cluster.arguments.tokens
    line = (
        f"{len(cluster.nodes)} nodes, {sum(cluster.done.values())} faults ({', '.join(f'{n} {what}' for what, n in cluster.done.items())}): "
        f"{len(acknowledged):,} sequences acknowledged, {len(found):,} stored ({tokens:,} tokens; the rest was written but its flush "
        f"was killed), {len(lost)} lost, {len(twice)} twice; {nodes['n']} nodes known to the service"
    )
    return line, not lost and not twice


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Many nodes without a shared disk, and faults.")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--calls", type=int, default=40, help="of each node")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between two calls")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="cluster.") as folder:
        cluster = Cluster(Path(folder), arguments, random.Random(arguments.seed))
        started = time.monotonic()
        cluster.start()
        try:
            eventually(
                lambda: all((node / "relay.lock").exists() for node in cluster.nodes), "all relays run", PATIENCE
            )
            for _ in range(arguments.kills):
                time.sleep(cluster.chance.uniform(0.5, 2.5) * arguments.calls * arguments.pause / 60)
                cluster.hurt()
            cluster.finish()
            line, good = judge(cluster)
        finally:
            cluster.stop()
    print(f"{line}; {time.monotonic() - started:.0f} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
