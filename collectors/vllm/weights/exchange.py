"""Messages about weights between an engine core and its workers: files in a folder that both can name.

    <home>/readings/<run>/<engine>/asked.jsonl             requests of the engine core for readings
    <home>/readings/<run>/<engine>/<worker>.jsonl          readings of a worker
    <home>/readings/<run>/<engine>/<worker>.effective.json choices of a worker at its start
    <home>/readings/<run>/<engine>/adapters.lines          LoRA adapters that the first worker loaded

Workers may be threads of the engine's process, or other processes on this or another machine. All of them know the data
directory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict, cast

from logprobe.collectors.spool.json_lines import JsonLines
from logprobe.collectors.spool.segments import run_dir
from logprobe.collectors.versions import home_and_run

ONLY: Final = "only"  # file name of an engine's only worker


class Told(TypedDict):
    """Line of a worker. Its times are on the monotonic clock of `machine`, `wall` seconds behind the wall clock."""

    machine: str | None
    wall: float


class Answer(Told):
    """Reading of a worker's weights. `keys`: keys of `hashes`, if they differ from those of the previous line."""

    reason: str
    began: float
    ended: float
    hashes: list[int]
    keys: NotRequired[tuple[str, ...]]


class Loaded(Told):
    """LoRA adapter that a worker loaded.

    `path` is None if its steps are unknown, `step` if it was loaded outside a step, `written` if the time of its files
    is unknown. `keys` and `hashes` are None if its content could not be read.
    """

    name: str
    number: int
    path: str | None
    step: float | None
    began: float
    written: float | None
    keys: tuple[str, ...] | None
    hashes: list[int] | None


def folder_of(vllm_config: Any) -> Path:
    """Return the folder of an engine. Raise `ConfigurationError` if the environment names no data directory or run."""
    home, run = home_and_run()
    index = getattr(vllm_config.parallel_config, "data_parallel_index", 0)
    return home / "readings" / run_dir(home, run).name / f"{vllm_config.instance_id}-{index}"


def worker_name(vllm_config: Any, rank: int) -> str | None:
    """Return the name of a worker's part of the model, or None if it has the whole model.

    >>> from types import SimpleNamespace as Some
    >>> worker_name(Some(parallel_config=Some(world_size=4, tensor_parallel_size=2, pipeline_parallel_size=2)), 3)
    'tp1of2-pp1of2'
    """
    config = vllm_config.parallel_config
    if config.world_size <= 1:
        return None
    tensor, pipeline = config.tensor_parallel_size, config.pipeline_parallel_size
    name = f"tp{rank % tensor}of{tensor}"
    return f"{name}-pp{rank // tensor % pipeline}of{pipeline}" if pipeline > 1 else name


class Exchange:
    """Folder of one engine. Every method may raise `OSError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = JsonLines(folder / "asked.jsonl")
        self.adapters = JsonLines(folder / "adapters.lines")
        self._answers: dict[str, JsonLines] = {}

    def answers_of(self, worker: str | None) -> JsonLines:
        """Return the file of one worker's readings."""
        return JsonLines(self.folder / f"{worker or ONLY}.jsonl")

    def new_answers(self) -> list[tuple[str | None, Answer]]:
        """Return the readings of all workers since the last call."""
        for path in sorted(self.folder.glob("*.jsonl")):
            if path.stem != "asked" and path.stem not in self._answers:
                self._answers[path.stem] = JsonLines(path)
        return [
            (None if name == ONLY else name, cast("Answer", answer))
            for name, lines in self._answers.items()
            for answer in lines.read_new()
        ]

    def new_adapters(self) -> list[Loaded]:
        """Return the adapters loaded since the last call."""
        return [cast("Loaded", line) for line in self.adapters.read_new()]

    def write_effective(self, worker: str | None, document: Mapping[str, object]) -> None:
        """Write the choices of a worker at its start atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{worker or ONLY}.effective.json"
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(document), encoding="utf-8")
        unfinished.replace(path)

    def effective(self) -> dict[str, object]:
        """Return the choices of the engine's first worker, or an empty mapping if unknown."""
        for path in sorted(self.folder.glob("*.effective.json")):
            return dict(json.loads(path.read_text(encoding="utf-8")))
        return {}

    def remove(self) -> None:
        """Remove the folder of an engine at its end."""
        shutil.rmtree(self.folder, ignore_errors=True)
