"""Nodes, a real S3 server, a service, and faults at random: does the store have what `flush()` acknowledged, once?

    make campaign NAME=bucket ARGS="rclone weed azurite --nodes 6 --seconds 120 --seed 1"

Every node is a trainer in a process of its own with a folder of its own, which starts its shipper; shippers reach the server
through proxies that cut, stop in the middle and change bytes; for a minute it is away. Then everything comes three times more
and under another writer's name, and the service's home is lost. Exit code 1 if something acknowledged is missing, something is stored twice,
or metrics differ after a loss.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import node_program
import psutil
from bucket_servers import address, environment, serving
from network import Proxy, stored, waiting
from processes import connected, end, eventually, start_service

from logprobe.collectors.addresses import folder_of
from logprobe.collectors.shipping.bucket import SPOOL, Bucket

RUN = "chaos/日本語"
PATIENCE = 400.0
METRICS = "FROM step_metrics ORDER BY ALL"
CALLS_A_SECOND = 12


class Chaos:
    """Everything that runs."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, kind: str, server) -> None:
        self.folder, self.arguments, self.kind, self.server = folder, arguments, kind, server
        self.address = f"{address(kind)}/team"
        self.chance = random.Random(arguments.seed)
        self.done: Counter[str] = Counter()
        self.proxies = [Proxy(server.port, seed=number) for number in range(2)]
        self.homes, self.copies = 0, folder / "copies"
        self.service = self.started()
        self.nodes = [folder / f"node{number:02d}" for number in range(arguments.nodes)]
        self.trainers = [self.trainer(number) for number in range(len(self.nodes))]

    @property
    def home(self) -> Path:
        return self.folder / f"home{self.homes}"

    def started(self) -> subprocess.Popen[bytes]:
        os.environ.update(environment(self.server.port, self.kind))
        return start_service(self.home, "--bucket", self.address)

    def variables(self, number: int) -> dict[str, str]:
        proxy = self.proxies[number % len(self.proxies)]
        return {
            **os.environ,
            **environment(proxy.port, self.kind, XDG_STATE_HOME=str(self.nodes[number] / "state")),
            "LOGPROBE_HOME": self.address,
            "OMP_NUM_THREADS": "1",
        }

    def spool(self, number: int) -> Path:
        return folder_of(self.address, self.variables(number))

    def trainer(self, number: int) -> subprocess.Popen[bytes]:
        calls = (self.arguments.seconds + self.arguments.away) * CALLS_A_SECOND
        command = [node_program.__file__, str(self.nodes[number]), RUN, self.nodes[number].name, str(calls), "8", "64"]
        log = (self.folder / f"{self.nodes[number].name}.log").open("ab")
        return subprocess.Popen(
            [sys.executable, *command, str(1 / CALLS_A_SECOND)], env=self.variables(number), stdout=log, stderr=log
        )

    def supervise(self) -> None:
        """Start a service again that has ended, as `logprobe up` does: a new home refuses to begin without its bucket."""
        if self.service.poll() is not None:
            self.service = self.started()

    def hurt(self) -> None:
        """One thing, at random."""
        self.supervise()
        what = self.chance.choice(
            ["shipper", "shipper", "server", "service", "node", "cut", "stop in the middle", "change"]
        )
        proxy, number = self.chance.choice(self.proxies), self.chance.randrange(len(self.nodes))
        if what == "shipper":
            what = self._kill_shipper(number)
        elif what == "server":
            self.server.kill()
            time.sleep(self.chance.uniform(0, 2))
            self.server.start()
        elif what == "service":
            self.service.kill()
            self.service.wait()
            self.service = self.started()
        elif what == "node":
            self.trainers[number].kill()
            self.trainers[number].wait()
            self.trainers[number] = self.trainer(number)
        elif what == "change":
            proxy.changed = (b"logprobe.writer", b"logprobe.wriXer")
            time.sleep(self.chance.uniform(0.3, 1.0))
            proxy.changed = None
        else:
            proxy.cut_after = None if what == "cut" else 30_000
            proxy.cut()
            time.sleep(0.3)
            proxy.cut_after = None
        self.done[what] += 1

    def away(self) -> int:
        """The server does not answer for a while; return how many segments wait on the nodes at its end."""
        self.server.kill()
        time.sleep(self.arguments.away)
        left = sum(len(waiting(self.spool(number))) for number in range(len(self.nodes)))
        self.server.start()
        return left

    def _kill_shipper(self, number: int) -> str:
        for process in psutil.process_iter(["cmdline"]):
            with suppress(psutil.Error):
                shipping = "logprobe.collectors.shipping" in (process.info["cmdline"] or ())
                if shipping and process.environ().get("XDG_STATE_HOME") == str(self.nodes[number] / "state"):
                    process.send_signal(signal.SIGKILL)
                    return "shipper"
        return "shipper that did not run"

    def finish(self) -> None:
        """Let everything come to its end, by hand where the last shipper was killed after its collectors had ended."""
        self.supervise()
        for trainer in self.trainers:
            trainer.wait(PATIENCE)
        for number in range(len(self.nodes)):
            command = [sys.executable, "-m", "logprobe.app.cli", "ship", "--seconds", "200"]
            subprocess.run(command, env=self.variables(number), check=False, timeout=PATIENCE)
            assert not waiting(self.spool(number))

    def counted(self, acknowledged: list[str]) -> tuple[int, int, int]:
        """Stored, lost and doubled sequences, once nothing is on its way."""
        bucket = Bucket(self.address)
        eventually(lambda: not list(bucket.entries(SPOOL)), "all is merged", PATIENCE)
        eventually(lambda: not waiting(self.home), "all is ingested", PATIENCE)
        with connected(self.home) as reader:
            found = Counter(stored(reader, RUN))
        return len(found), len(set(acknowledged) - found.keys()), sum(found.values()) - len(found)

    def metrics(self) -> list[dict[str, object]]:
        """Of all steps."""
        with connected(self.home) as reader:
            return reader.query(METRICS).to_pylist()

    def copy(self) -> None:
        """Keep what lies in the bucket now, for `again`."""
        bucket = Bucket(self.address)
        for entry in bucket.entries(SPOOL):
            place = self.copies / entry.name.removeprefix(SPOOL)
            content = None if place.exists() else bucket.get(entry.name)
            whole = content is not None and zlib.crc32(content) == int(place.name.split(".")[2], 16)
            if content is not None and whole:  # else its sender repairs it
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)

    def again(self) -> int:
        """What was copied three times more, and under another writer's name."""
        bucket, copies = Bucket(self.address), list(self.copies.rglob("*.arrow"))
        for path in copies:
            run, writer, file = path.relative_to(self.copies).parts
            for place in (writer, writer, writer, "other-writer-1"):
                bucket.put(f"{SPOOL}{run}/{place}/{file}", path.read_bytes())
        return len(copies)

    def lose(self) -> float:
        """The service's machine, for good; return when, on the monotonic clock."""
        began = time.monotonic()
        self.service.kill()
        self.service.wait()
        shutil.rmtree(self.home)
        self.homes += 1
        self.service = self.started()
        return began

    def stop(self) -> None:
        for trainer in self.trainers:
            trainer.kill()
        for proxy in self.proxies:
            proxy.close()
        end(self.service)


def run(kind: str, arguments: argparse.Namespace) -> bool:
    """One server; return whether all is as it must be."""
    with tempfile.TemporaryDirectory(prefix="bucket.") as name, serving(Path(name) / "server", kind) as server:
        chaos = Chaos(Path(name), arguments, kind, server)
        try:
            until = time.monotonic() + arguments.seconds
            while time.monotonic() < until:
                time.sleep(chaos.chance.uniform(0.5, 3.0))
                chaos.hurt()
                with suppress(OSError):  # the server was killed
                    chaos.copy()
            print(f"{kind}: away for {arguments.away} s: {chaos.away()} segments wait on the nodes", flush=True)
            chaos.finish()
            acknowledged = [sample for node in chaos.nodes for sample in node_program.acknowledged(node)]
            faults = ", ".join(f"{count} {what}" for what, count in sorted(chaos.done.items()))
            found = chaos.counted(acknowledged)
            print(f"{kind}: {faults}: {len(acknowledged):,} acknowledged, {_words(found)}", flush=True)
            good = not any(found[1:])
            wanted = chaos.metrics()
            if not arguments.once:
                segments = chaos.again()
                found = chaos.counted(acknowledged)
                print(f"{kind}: {segments:,} segments four times more: {_words(found)}", flush=True)
                good &= not any(found[1:]) and chaos.metrics() == wanted
            for number in range(arguments.losses):
                began = chaos.lose()
                eventually(partial(_is_back, chaos, found[0]), "all is there again", PATIENCE)
                seconds = time.monotonic() - began
                found, same = chaos.counted(acknowledged), chaos.metrics() == wanted
                print(
                    f"{kind}: loss {number + 1}: {seconds:.0f} s, {_words(found)}, metrics the same: {same}", flush=True
                )
                good &= not any(found[1:]) and same
        finally:
            chaos.stop()
    return good


def _is_back(chaos: Chaos, sequences: int) -> bool:
    with connected(chaos.home) as reader:
        return len(stored(reader, RUN)) >= sequences


def _words(found: tuple[int, int, int]) -> str:
    return "{:,} stored, {} lost, {} doubled".format(*found)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["rclone", "weed", "azurite"])
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--away", type=int, default=60, help="seconds without a server")
    parser.add_argument("--losses", type=int, default=10)
    parser.add_argument("--once", action="store_true", help="without what comes four times more")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    good = [run(kind, arguments) for kind in arguments.kinds]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
