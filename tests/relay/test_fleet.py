"""Three services, nodes that were given the first of them, and a run that is moved round while all of it is killed and two of them are lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import serving
from processes import connected, end, eventually, logprobe, start_service
from relay_processes import Process, port_of, prepare, receiver, relay, stored, waiting
from store_work import bring_in

from logprobe.collectors import Recorder
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.store.store import Store

RUN, NODES, STEPS, SEQUENCES, TOKENS = "r/1", 3, 12, 4, 24
NAMES = ("a", "b", "c")
METRICS = "SELECT step, metric, value FROM step_metrics WHERE run = 'r/1' ORDER BY ALL"
PATIENCE = 600.0
SECONDS_BETWEEN = 2.0  # segments of a node


def recorded(folder: Path, node: int) -> list[Path]:
    """What a node will have in its spool, in the order in which it is written."""
    rng = np.random.default_rng(node)
    with Recorder(folder, RUN, rank=node) as recorder:
        for step in range(STEPS):
            shape = (SEQUENCES, TOKENS)
            names, ids = [f"{step}-{node}-{row}" for row in range(SEQUENCES)], rng.integers(0, 1000, shape)
            r = -rng.exponential(0.7, shape).astype(np.float32)
            t = np.minimum(r + rng.normal(0, 0.1, shape) * 10.0 ** rng.integers(-3, 1, (SEQUENCES, 1)), -1e-9)
            recorder.rollout(
                sample_ids=names, token_ids=ids, logprobs=r, lengths=[TOKENS] * SEQUENCES, weight_version=str(step)
            )
            assert recorder.flush()
            recorder.training(
                step=step,
                sample_ids=names,
                token_ids=ids,
                mask=np.ones(shape, bool),
                rollout_logprobs=None if step % 2 else r,
                trainer_logprobs=t.astype(np.float32),
                rewards=rng.random(SEQUENCES),
                weight_version=str(step),
            )
            recorder.step(step, loss=float(rng.random()))
            assert recorder.flush()
    return sorted((folder / "spool").rglob("*.arrow"), key=lambda path: SegmentPath.parse(path).sequence)


def answers(home: Path) -> bool:
    try:
        connect(home).close()
    except ServiceUnavailableError:
        return False
    return True


def bits(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["step"], row["metric"], None if row["value"] is None else row["value"].hex()) for row in rows]


def alone(home: Path, prepared: list[Path]) -> list[Any]:
    """The numbers of one machine that gets all of it at once."""
    for folder in prepared:
        shutil.copytree(folder / "spool", home / "spool", dirs_exist_ok=True)
    with Store.open(Home(home).create()) as store:
        bring_in(store)
        return bits(store.query(METRICS).to_pylist())


RULES = """
alerts:
  defaults: false
  rules:
  - {{name: any-gap, severity: critical, metric: k3_kl, when: {{kind: threshold, above: 1.0e-12}}}}
channels:
  shared: {{kind: file, path: "{messages}"}}
"""


class Fleet:
    """The services, each with a receiver, and what kills them."""

    def __init__(self, folder: Path, chance: random.Random, settings: str = "") -> None:
        self.folder, self.chance, self.killed = folder, chance, 0
        self.homes = {name: folder / name / "home" for name in NAMES}
        self.messages = folder / "messages.jsonl"
        for home in self.homes.values():
            prepare(home)
            (home / "logprobe.yaml").write_text(RULES.format(messages=self.messages) + settings)
        self.describe(dict.fromkeys(NAMES))
        self.services = {name: self.service(name) for name in NAMES}
        self.receivers = {name: receiver(home).start() for name, home in self.homes.items()}
        self.ports = {name: port_of(each) for name, each in self.receivers.items()}
        self.describe({name: f"grpc+tls://localhost:{port}" for name, port in self.ports.items()})
        for name, each in self.receivers.items():
            each.command[-1] = str(self.ports[name])
            each.environment["LOGPROBE_FLEET"] = str(folder)
            each.end()
            each.start()
        self.ca, self.token = folder / "ca.pem", folder / "token"
        self.ca.write_bytes(b"".join(RelayFiles.of(Home(home)).authority.read_bytes() for home in self.homes.values()))
        self.token.write_text(logprobe("relay-token", "nodes", "--run", "*", "--fleet", folder).stdout)
        self.token.chmod(0o600)

    def describe(self, addresses: Mapping[str, str | None]) -> None:
        services = {name: {"home": str(self.homes[name]), "address": address} for name, address in addresses.items()}
        (self.folder / "fleet.yaml").write_text(json.dumps({"services": services}))

    def relay(self, node: Path) -> Process:
        """Of a node that was given the first service."""
        made = relay(node, self.ports["a"], self.homes["a"], self.token)
        made.command[made.command.index("--ca") + 1] = str(self.ca)
        return made.start()

    def service(self, name: str) -> subprocess.Popen[bytes]:
        """One that answers; started again, as `logprobe up` does it, where a command has the home at that moment."""
        process = start_service(self.homes[name])

        def answered() -> bool:
            nonlocal process
            if process.poll() is not None:
                process.communicate()
                process = start_service(self.homes[name])
            return answers(self.homes[name])

        eventually(answered, f"service {name} answers", PATIENCE)
        return process

    def move(self, to: str) -> None:
        self.insist("move", RUN, to)

    def insist(self, *words: str) -> None:
        """As an operator would who is interrupted, with something killed meanwhile; repeated until it has worked."""
        command = [sys.executable, "-m", "logprobe.app.cli", "fleet", *words, "--fleet", str(self.folder)]
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(self.chance.uniform(0.5, 6))
        self.hurt()
        asked.send_signal(self.chance.choice([signal.SIGKILL, signal.SIGCONT]))
        asked.communicate(timeout=PATIENCE)
        eventually(
            lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0,
            f"{words} has worked",
            PATIENCE,
        )

    def hurt(self) -> None:
        name = self.chance.choice([*self.services])
        self.killed += 1
        if self.chance.random() < 0.5:
            self.receivers[name].kill()
            self.receivers[name].start()
        else:
            self.services[name].kill()
            self.services[name].communicate()
            self.services[name] = self.service(name)

    def lose(self, name: str) -> None:
        """A service and its receiver, for good; the others take over."""
        self.receivers.pop(name).kill()
        lost = self.services.pop(name)
        lost.kill()
        lost.communicate()
        self.insist("takeover", name)

    def lose_disk(self, name: str) -> None:
        """A service, its receiver and its home, for good."""
        self.receivers.pop(name).kill()
        lost = self.services.pop(name)
        lost.kill()
        lost.communicate()
        self.homes.pop(name).rename(self.folder / f"{name}.lost")  # at once: another one may just be forwarding there
        self.insist("takeover", name, "--lost")
        self.describe({name: f"grpc+tls://localhost:{self.ports[name]}" for name in self.homes})

    def holder(self) -> str:
        table = json.loads((self.folder / "runs.json").read_text())
        return str(table["runs"][RUN]["service"])

    def stop(self) -> None:
        for each in self.receivers.values():
            each.end()
        for service in self.services.values():
            end(service)


def place(segments: list[Path], prepared: Path, node: Path, done: threading.Event) -> None:
    """Writes a node's segments over time, as its collector would."""
    for segment in segments:
        target = node / segment.relative_to(prepared)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(segment, target.with_name(f".{target.name}"))
        target.with_name(f".{target.name}").rename(target)
        done.wait(SECONDS_BETWEEN)


def begin(
    segments: list[list[Path]], prepared: list[Path], nodes: list[Path], done: threading.Event
) -> list[threading.Thread]:
    """Threads that write what each node records, and have begun."""
    writing = [
        threading.Thread(target=place, args=(*each, done)) for each in zip(segments, prepared, nodes, strict=True)
    ]
    for thread in writing:
        thread.start()
    for node in nodes:
        (node / "spool").mkdir(parents=True, exist_ok=True)
    return writing


def complete(home: Path, expected: list[Any]) -> list[Any]:
    """The sequences that a home has, once it has all of them: none is lost, none there twice, and the numbers are those of one machine."""
    with connected(home) as reader:
        eventually(lambda: len(stored(reader, RUN)) >= NODES * STEPS * SEQUENCES, "all of it is stored", PATIENCE)
        found = stored(reader, RUN)
        assert (len(found), len(set(found))) == (NODES * STEPS * SEQUENCES, len(found)), "none lost, none twice"
        eventually(lambda: bits(reader.query(METRICS).to_pylist()) == expected, "the numbers of one machine", PATIENCE)
    return found


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [int(os.environ.get("LOGPROBE_FLEET_SEED", "1"))])
def test_a_run_that_is_moved_and_taken_over_while_it_is_recorded_and_things_are_killed_has_the_numbers_of_one_machine(
    tmp_path: Path, seed: int
) -> None:
    prepared = [tmp_path / f"prepared{node}" for node in range(NODES)]
    segments = [recorded(folder, node) for node, folder in enumerate(prepared)]
    expected = alone(tmp_path / "one", prepared)
    fleet = Fleet(tmp_path, random.Random(seed))
    done, nodes = threading.Event(), [tmp_path / f"node{number}" for number in range(NODES)]
    relays = []
    try:
        writing = begin(segments, prepared, nodes, done)
        relays = [fleet.relay(node) for node in nodes]
        with connected(fleet.homes["a"]) as reader:
            eventually(lambda: stored(reader, RUN), "the first service has the run", PATIENCE)
        for to in ("b", "c", "b"):
            fleet.move(to)
            print(f"moved to {to}", flush=True)
        fleet.lose("a")  # to which the relays were sent
        fleet.lose("b")  # which has the run
        print(f"taken over by {fleet.holder()}", flush=True)
        assert fleet.holder() == "c"
        for thread in writing:
            thread.join()
        eventually(lambda: not any(map(waiting, [*nodes, fleet.homes["c"]])), "all spools are empty", PATIENCE)
        assert not any(map(waiting, fleet.homes.values())), "what the lost services had acknowledged was taken over"
        found = complete(fleet.homes["c"], expected)
        told = [json.loads(line) for line in fleet.messages.read_text().splitlines()]
        firing = [each["key"] for each in told if each["rule"] == "any-gap" and each["state"] == "firing"]
        assert (len(firing), len({each["key"] for each in told})) == (1, len(told)), "one message of the incident"
        listed = json.loads(logprobe("fleet", "list", "--fleet", tmp_path, "--json").stdout)
        assert [each["runs"] for each in listed["services"]] == [0, 0, 1]
        print(
            f"seed {seed}: {fleet.killed} killed, 2 lost, {len(found)} sequences, {len(expected)} numbers equal in every bit, "
            f"{len(told)} messages"
        )
    finally:
        done.set()
        for each in relays:
            each.end()
        fleet.stop()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [int(os.environ.get("LOGPROBE_FLEET_SEED", "1"))])
def test_a_run_whose_services_lose_their_disks_is_had_from_the_object_store_and_the_nodes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = [tmp_path / f"prepared{node}" for node in range(NODES)]
    segments = [recorded(folder, node) for node, folder in enumerate(prepared)]
    expected = alone(tmp_path / "one", prepared)
    done, nodes = threading.Event(), [tmp_path / f"node{number}" for number in range(NODES)]
    with serving(tmp_path / "objects", monkeypatch) as server:
        storage = f"storage: {{segments: {server.place}/segments, endpoint: {server.endpoint}, region: us-east-1}}\n"
        fleet = Fleet(tmp_path, random.Random(seed), storage)
        relays = []
        try:
            (tmp_path / "runs.json").write_text(json.dumps({"runs": {RUN: {"service": "a", "since": "now"}}}))
            writing = begin(segments, prepared, nodes, done)
            relays = [fleet.relay(node) for node in nodes]
            with connected(fleet.homes["a"]) as reader:
                eventually(lambda: stored(reader, RUN), "the first service has the run", PATIENCE)
            fleet.move("b")
            server.kill()  # nothing is acknowledged meanwhile
            fleet.hurt()
            server.start()
            acknowledged = []
            for _ in range(2):
                name = fleet.holder()
                with connected(fleet.homes[name]) as reader:
                    wanted = min(len(acknowledged) + 1, NODES * STEPS * SEQUENCES)
                    eventually(lambda r=reader, n=wanted: len(stored(r, RUN)) >= n, "more has come", PATIENCE)
                    acknowledged = stored(reader, RUN)
                fleet.lose_disk(name)
                print(f"{name} lost with {len(acknowledged)} sequences, {fleet.holder()} has the run", flush=True)
            for thread in writing:
                thread.join()
            (left,) = fleet.homes
            eventually(lambda: not any(map(waiting, [*nodes, fleet.homes[left]])), "all spools are empty", PATIENCE)
            found = complete(fleet.homes[left], expected)
            assert set(acknowledged) <= set(found)
            print(
                f"seed {seed}: {fleet.killed} killed, 2 disks lost, {len(found)} sequences, {len(expected)} numbers equal in every bit"
            )
        finally:
            done.set()
            for each in relays:
                each.end()
            fleet.stop()
