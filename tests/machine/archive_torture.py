"""Kill the service, delete its index, cut the power, fill the disk: nothing that was acknowledged may be lost, doubled or deleted.

    python tests/machine/archive_torture.py --seed 1 --kills 300 --worlds 40

`--kills`: a real process on a real disk, killed with SIGKILL at random moments; every seventh time its index is deleted,
and now and then the index's log. `--worlds`: histories on a simulated disk, each with many kills, power cuts and faults.
A seed repeats the histories in every operation, and the real kills as far as a machine repeats itself.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from archive_world import World, segment_bytes  # noqa: E402
from duck_index import DuckIndex  # noqa: E402
from killed_service import serve  # noqa: E402
from model_service import KEYS, Service, metrics, numbers_of  # noqa: E402

from logprobe.collectors.clock import TIME  # noqa: E402
from logprobe.collectors.files import DISK, replace_file  # noqa: E402
from logprobe.collectors.spool.segments import run_dir, run_name, spool_dir  # noqa: E402
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES  # noqa: E402
from logprobe.monitor.store.journal import latest  # noqa: E402

RUNS = 4
_PROCESSES = multiprocessing.get_context("fork")  # what a start imports takes seconds; a start is what comes after
UP_AT_MOST = 60.0  # seconds until a start has to have come to its end


@dataclass
class Said:
    """What a killed service had confirmed, by its output."""

    began: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    confirmed: dict[tuple[str, str], int] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    deleting: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    may_freeze: dict[tuple[str, int], set[float]] = field(default_factory=lambda: defaultdict(set))

    def hear(self, output: str) -> None:
        for line in output.splitlines(keepends=True):
            words = line.rstrip("\n").split("\t")
            if not line.endswith("\n"):
                continue  # cut short by the kill
            if words[0] == "saying":
                self.began[words[1], words[2]].add(int(words[3]))
            elif words[0] == "said":
                self.confirmed[words[1], words[2]] = int(words[3])
                self.began[words[1], words[2]] = {int(words[3])}
            elif words[0] == "may freeze":
                self.may_freeze[words[1], int(words[2])].add(float.fromhex(words[3]))
            elif words[0] in {"sent", "deleting", "deleted"}:
                value = getattr(self, words[0])
                value.append(words[1]) if isinstance(value, list) else value.add(words[1])


class RealKills:
    """Writers and a service on a real disk."""

    def __init__(self, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.home = place / "home"
        self.home.mkdir(parents=True)
        self.network = place / "sent"
        self.network.touch()
        self.said = Said()
        self.acknowledged: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        self.written: list[tuple[Path, bytes]] = []
        self.number = 0
        self.done: Counter[str] = Counter()
        self.foreign: dict[Path, bytes] = {}
        self.refused: set[str] = set()  # runs whose folder went while a segment was written

    def kill(self, count: int) -> None:
        """Start the service, let writers write, and kill it; then perhaps take its index away."""
        output = self.home.parent / f"output-{count}"
        output.touch()
        process = _PROCESSES.Process(target=serve, args=(self.home, count, output))
        process.start()
        started = self.random.random() < 0.8  # else it is killed in its start
        deadline = time.monotonic() + UP_AT_MOST
        while started and b"up" not in output.read_bytes():
            assert process.is_alive(), f"the service ended: {process.exitcode}"
            assert time.monotonic() < deadline, "the service does not come up"
            time.sleep(0.01)
        until = time.monotonic() + self.random.uniform(0.0, 0.4 if started else 1.2)
        while time.monotonic() < until:
            self.write()
            time.sleep(0.005)
        assert process.is_alive(), f"the service ended by itself: {process.exitcode}"
        process.kill()
        process.join()
        self.said.hear(output.read_text())
        assert self.refused <= {*self.said.deleting, *self.said.deleted}, (
            "only a deletion removes what is being written"
        )
        self.done["kills"] += 1
        self.done["killed while starting"] += not started
        if count % 7 == 0:
            for path in self.home.glob("index.duckdb*"):
                path.unlink()
            self.done["deleted indexes"] += 1
        elif self.random.random() < 0.1 and (log := self.home / "index.duckdb.wal").exists():
            log.unlink()
            self.done["deleted logs"] += 1
        if self.random.random() < 0.05:
            self.plant()

    def write(self) -> None:
        if self.written and self.random.random() < 0.05:
            path, content = self.random.choice(self.written)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.done["resent"] += self.put(path, content)
            return
        run = f"run{self.random.randrange(RUNS)}"
        self.number += 1
        step = self.number // 40 if self.random.random() < 0.9 else self.random.randrange(40)
        rows = [
            (min(step, 39), f"s{self.number}-{row}", float(np.float32(self.random.gauss(0, 1)))) for row in range(3)
        ]
        name, content = segment_bytes(run, "w", self.number, rows)
        path = run_dir(self.home, run) / "w" / name
        if not self.put(path, content):
            return
        self.written.append((path, content))
        self.acknowledged[run].update({sample: (step, value) for step, sample, value in rows})
        self.done["segments"] += 1

    def put(self, path: Path, content: bytes) -> bool:
        """Write a segment; return False if its run is being deleted, with its folder: no success is told then."""
        try:
            replace_file(path, content)
        except FileNotFoundError:
            self.refused.add(run_name(path.parent.parent.name))
            return False
        return True

    def plant(self) -> None:
        folder = self.home / "archive" / f"run{self.random.randrange(RUNS)}" / "training"
        if folder.is_dir():
            whole = sorted(folder.glob("*.parquet"))
            content = bytearray(self.random.choice(whole).read_bytes() if whole else b"foreign")
            content[self.random.randrange(len(content))] ^= 1
            path = folder / f"{self.random.getrandbits(128):032x}.parquet"
            path.write_bytes(content)
            self.foreign[path] = bytes(content)
            self.done["damaged files"] += 1

    def problems(self) -> list[str]:
        """Start once more, from the files alone, and compare everything."""
        for path in self.home.glob("index.duckdb*"):
            path.unlink()
        index = DuckIndex(self.home / "index.duckdb")
        service = Service(self.home, index, DISK, TIME, [])
        service.start()
        while service.tick():
            pass
        service.minute()
        found = [problem for run in self.acknowledged for problem in self._of_run(run, service)]
        found += self._of_files(service)
        known = latest(service.said, KEYS)
        for (kind, name), value in self.said.confirmed.items():
            entry = known[kind].get((name,))
            if entry is None or entry.what["value"] not in {value, *self.said.began[kind, name]}:
                found.append(f"{kind} {name} is forgotten: {entry}")
        sent = self.network.read_text().split()
        found += [f"message {key} was sent twice" for key, count in Counter(sent).items() if count > 1]
        found += [f"message {key} was not sent" for key in set(self.said.sent) - set(sent)]
        found += [f"message {key} would be sent again" for key in sent if (key,) not in known["sending"]]
        self.done["silences, acceptances, corrections"] = len(self.said.confirmed)
        self.done["messages"] = len(sent)
        index.close()
        return found

    def _of_run(self, run: str, service: Service) -> list[str]:
        numbers, frozen = service.index.numbers(run), service.index.frozen(run)
        if run in service.tombstones:
            rest = [
                path for path in (self.home / "archive" / run).rglob("*") if path.is_file() and path not in self.foreign
            ]
            problems = [f"{run} is deleted, and {len(numbers)} numbers and {len(rest)} files are there"] * bool(
                numbers or rest
            )
            return problems + [f"{run} is deleted, and nobody asked for it"] * (run not in self.said.deleting)
        wanted = {each: (step, value) for each, (step, value) in self.acknowledged[run].items() if step not in frozen}
        there = Counter(sample for _, sample, _ in numbers)
        self.done["numbers"] += len(numbers)
        self.done["frozen steps"] += len(frozen)
        problems = [f"{run} was deleted, and is there again"] * (run in self.said.deleted)
        problems += [f"{run}: {sample} is there {count} times" for sample, count in there.items() if count > 1]
        problems += [f"{run}: {sample} is lost" for sample in wanted.keys() - there.keys()]
        problems += [
            f"{run}: {s} is {value}, not {wanted.get(s)}"
            for step, s, value in numbers
            if wanted.get(s) != (step, value)
        ]
        problems += [
            f"{run}: step {step} frozen with {value}"
            for step, value in frozen.items()
            if value not in self.said.may_freeze[run, step]
        ]
        return problems + self._of_the_archive(run, service)

    def _of_the_archive(self, run: str, service: Service) -> list[str]:
        """Read every file again: each segment once, and the same numbers as the index has."""
        held: Counter[str] = Counter()
        numbers = []
        for file in service.archive.files(run):
            held.update(file.segments)
            table = service.archive.table(file)
            if file.kind == SEQUENCES:
                numbers += [tuple(row.values()) for row in table.to_pylist()]
            elif file.kind != FROZEN:
                numbers += numbers_of(table)
        steps = set(range(40)) - service.index.frozen(run).keys()
        same = metrics(numbers, steps) == metrics(service.index.numbers(run), steps)
        return [f"{run}: {each} is in {count} files" for each, count in held.items() if count > 1] + [
            f"{run}: other sums"
        ] * (not same)

    def _of_files(self, service: Service) -> list[str]:
        problems = [f"{path} is in no file" for path in spool_dir(self.home).rglob("*.arrow")]
        problems += [f"{path} is left" for path in self.home.rglob("*.tmp")]
        for path, content in self.foreign.items():
            if path.parent.parent.name not in service.tombstones and (
                not path.exists() or path.read_bytes() != content
            ):
                problems.append(f"{path} was changed")
        left = {self.home / "archive" / path for path in service.archive.left}
        return problems + [f"{path} is left and not known" for path in left - self.foreign.keys()]


def real(seed: int, kills: int) -> tuple[Counter[str], list[str]]:
    """Kill a real process, and return what was done and what is wrong."""
    with tempfile.TemporaryDirectory() as place:
        history = RealKills(Path(place), seed)
        for count in range(1, kills + 1):
            history.kill(count)
        return history.done, history.problems()


def simulated(seed: int, steps: int = 300) -> tuple[Counter[str], list[str]]:
    """Go through a history on a simulated disk, and return what was done and what is wrong."""
    world = World(seed)
    world.run(steps)
    return world.done, world.problems


def main() -> int:
    """Print what was done and what is wrong as JSON; return 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--worlds", type=int, default=40)
    arguments = parser.parse_args()
    started = time.process_time()
    done, wrong = real(arguments.seed, arguments.kills) if arguments.kills else (Counter(), [])
    worlds: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.worlds):
        happened, problems = simulated(seed)
        worlds += happened
        wrong += [f"seed {seed}: {problem}" for problem in problems]
    result = {"real": dict(done), "simulated": dict(worlds), "wrong": wrong[:20], "problems": len(wrong)}
    print(json.dumps(result | {"processor_seconds": round(time.process_time() - started)}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
