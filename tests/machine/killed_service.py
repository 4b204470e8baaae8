"""The model service as a process on a real disk, until it is killed. What it confirms is in its output, line by line:
`said` and `sent` what it did, `deleting` and `deleted` a run, `may freeze` the value of a step."""

from __future__ import annotations

import random
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

from duck_index import DuckIndex
from model_service import KEYS, Service, metrics

from logprobe.collectors.clock import TIME
from logprobe.collectors.files import DISK
from logprobe.monitor.store import archive


class Network(list[str]):
    """Messages that came out: a line of a file each, which no kill takes back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, key: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{key}\n")


def serve(home: Path, seed: int, output: Path) -> None:
    """Do what a service does, in random order."""
    with output.open("w") as file, patch.object(archive, "SMALL_FILES", 3), redirect_stdout(file):
        _serve(home, random.Random(seed))


def _serve(home: Path, draw: random.Random) -> None:
    service = Service(home, DuckIndex(home / "index.duckdb"), DISK, TIME, Network(home.parent / "sent"))
    service.start()
    _say("up")
    while True:
        service.tick()
        run = f"run{draw.randrange(4)}"
        doing = draw.choices(
            ("nothing", "minute", "compact", "reduce", "freeze", "act", "send", "delete"), (3, 6, 3, 2, 1, 2, 2, 0.03)
        )[0]
        if doing == "minute":
            service.minute()
        elif run in service.tombstones:
            continue
        elif doing == "compact":
            service.compact(run)
        elif doing == "reduce":
            service.reduce(run, draw.randrange(1, 4))
        elif doing == "freeze":
            for step, value in metrics(service.index.numbers(run), range(40)).items():
                _say("may freeze", run, step, value.hex())
            service.freeze(run, 1)
        elif doing == "act":
            _act(service, draw)
        elif doing == "send":
            key = f"m{draw.getrandbits(16)}"
            service.send(key)
            _say("sent", key)
        elif doing == "delete":
            _say("deleting", run)
            service.delete(run)
            _say("deleted", run)


def _act(service: Service, draw: random.Random) -> None:
    kind = draw.choice(["silence", "accept", "correction"])
    (key,) = KEYS[kind]
    name, value = f"{key}{draw.randrange(5)}", draw.getrandbits(32)
    _say("saying", kind, name, value)
    service.act(kind, {key: name, "value": value})
    _say("said", kind, name, value)


def _say(*words: object) -> None:
    print(*words, sep="\t", flush=True)
