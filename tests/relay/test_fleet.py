"""Three services, nodes that send to the first of them, and a run that is moved round while all of it is killed."""

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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import connected, end, eventually, logprobe, start_service
from relay_processes import port_of, prepare, receiver, relay, stored, waiting
from store_work import bring_in

from logprobe.collectors import Recorder
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.store.store import Store

RUN, NODES, STEPS, SEQUENCES, TOKENS = "r/1", 3, 12, 4, 24
NAMES = ("a", "b", "c")
METRICS = "SELECT step, metric, value FROM step_metrics WHERE run = 'r/1' ORDER BY ALL"
PATIENCE = 600.0


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


class Fleet:
    """The services, with a receiver at the first, and what kills them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self.killed = folder, chance, 0
        self.homes = {name: folder / name / "home" for name in NAMES}
        services = {name: {"home": str(home)} for name, home in self.homes.items()}
        (folder / "fleet.yaml").write_text(json.dumps({"services": services}))
        self.key = prepare(self.homes["a"])
        self.services = {name: self.service(name) for name in NAMES}
        self.receiver = receiver(self.homes["a"]).start()
        self.port = port_of(self.receiver)
        self.receiver.command[-1] = str(self.port)

    def service(self, name: str) -> subprocess.Popen[bytes]:
        """One that answers."""
        process = start_service(self.homes[name])
        eventually(lambda: answers(self.homes[name]), f"service {name} answers", PATIENCE)
        return process

    def move(self, to: str) -> None:
        """As an operator would who is interrupted, with something killed meanwhile; repeated until it has worked."""
        command = [sys.executable, "-m", "logprobe.app.cli", "fleet", "move", RUN, to, "--fleet", str(self.folder)]
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(self.chance.uniform(0.5, 6))
        self.hurt()
        asked.send_signal(self.chance.choice([signal.SIGKILL, signal.SIGCONT]))
        asked.communicate(timeout=PATIENCE)
        eventually(
            lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0,
            f"moved to {to}",
            PATIENCE,
        )

    def hurt(self) -> None:
        name = self.chance.choice([*NAMES, "receiver"])
        self.killed += 1
        if name == "receiver":
            self.receiver.kill()
            self.receiver.start()
        else:
            self.services[name].kill()
            self.services[name].communicate()
            self.services[name] = self.service(name)

    def stop(self) -> None:
        self.receiver.end()
        for service in self.services.values():
            end(service)


def place(segments: list[Path], prepared: Path, node: Path, done: threading.Event) -> None:
    """Writes a node's segments over time, as its collector would."""
    for segment in segments:
        target = node / segment.relative_to(prepared)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(segment, target.with_name(f".{target.name}"))
        target.with_name(f".{target.name}").rename(target)
        done.wait(0.3)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [int(os.environ.get("LOGPROBE_FLEET_SEED", "1"))])
def test_a_run_that_is_moved_while_it_is_recorded_and_things_are_killed_has_the_numbers_of_one_machine(
    tmp_path: Path, seed: int
) -> None:
    prepared = [tmp_path / f"prepared{node}" for node in range(NODES)]
    segments = [recorded(folder, node) for node, folder in enumerate(prepared)]
    reference = tmp_path / "one"
    for folder in prepared:
        shutil.copytree(folder / "spool", reference / "spool", dirs_exist_ok=True)
    with Store.open(Home(reference).create()) as store:
        bring_in(store)
        expected = bits(store.query(METRICS).to_pylist())
    fleet = Fleet(tmp_path, random.Random(seed))
    done, nodes = threading.Event(), [tmp_path / f"node{number}" for number in range(NODES)]
    relays = []
    try:
        writing = [
            threading.Thread(target=place, args=(*each, done)) for each in zip(segments, prepared, nodes, strict=True)
        ]
        for thread in writing:
            thread.start()
        for node in nodes:
            (node / "spool").mkdir(parents=True, exist_ok=True)
        relays = [relay(node, fleet.port, fleet.homes["a"], fleet.key).start() for node in nodes]
        with connected(fleet.homes["a"]) as reader:
            eventually(lambda: stored(reader, RUN), "the first service has the run", PATIENCE)
        for to in ("b", "c", "a", "b"):
            fleet.move(to)
            print(f"moved to {to}", flush=True)
        for thread in writing:
            thread.join()
        eventually(lambda: not any(map(waiting, [*nodes, *fleet.homes.values()])), "all spools are empty", PATIENCE)
        with connected(fleet.homes["b"]) as reader:
            found = stored(reader, RUN)
            assert (len(found), len(set(found))) == (NODES * STEPS * SEQUENCES, len(found)), "none lost, none twice"
            eventually(
                lambda: bits(reader.query(METRICS).to_pylist()) == expected, "the numbers of one machine", PATIENCE
            )
        for name in ("a", "c"):
            with connected(fleet.homes[name]) as reader:
                assert stored(reader, RUN) == []
        listed = json.loads(logprobe("fleet", "list", "--fleet", tmp_path, "--json").stdout)
        assert [each["runs"] for each in listed["services"]] == [0, 1, 0]
        print(f"seed {seed}: {fleet.killed} killed, {len(found)} sequences, {len(expected)} numbers equal in every bit")
    finally:
        done.set()
        for each in relays:
            each.end()
        fleet.stop()
