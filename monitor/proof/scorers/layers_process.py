"""Process that compares the outputs of two networks.

The command is ``python -m logprobe.monitor.proof.scorers.layers_process JOB.json ANSWER.json``.

A job has `model`, `sequences`, and two `sides`. A side has a `function` (``module:function``) with its `settings`, or
is empty for the engine of `arguments` and `overrides`. The answer has `layers`, the name and relative error of the
second side's hidden states in the order of the first's forward pass. With `operations`, the answer has `breaks`, the
first operation that differs in a bit. A failure has `error`, one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from logprobe.monitor.proof.scorers.child import answer_job
from logprobe.monitor.proof.scorers.forward_process import function_of
from logprobe.monitor.proof.scorers.jobs import EngineJob
from logprobe.monitor.proof.scorers.watching import Outputs, Watch, errors, first_break


def main(job: Mapping[str, Any], folder: Path) -> Mapping[str, object]:
    """Run both sides on one sequence at a time, without padding, and compare them."""
    sys.path.insert(0, job.get("folder", "."))
    ours, theirs = ([*(_by_function(job, side) if side else _by_engine(job, folder))] for side in job["sides"])
    if job.get("operations"):
        return {"breaks": asdict(first_break(ours[0], theirs[0]))}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for right, other in zip(ours, theirs, strict=True):
        for name, pair in errors(right, other):
            pairs.setdefault(name, []).append(pair)
    if not pairs:
        who = job["sides"][1].get("function", "the engine")
        raise ValueError(f"{who} runs no torch module whose layers are named as the checkpoint's")
    return {"layers": [(name, _relative(norms)) for name, norms in pairs.items()]}


def _relative(pairs: list[tuple[float, float]]) -> float:
    return float((sum(off for off, _ in pairs) / max(sum(size for _, size in pairs), 1e-30)) ** 0.5)


def _by_function(job: Mapping[str, Any], side: Mapping[str, Any]) -> Iterator[Outputs]:
    function = function_of(side["function"])
    for sequence in job["sequences"]:
        with Watch(operations=job.get("operations", False)) as watch:
            function([sequence], Path(job["model"]), **side["settings"])
        yield watch.outputs


def _by_engine(job: Mapping[str, Any], folder: Path) -> Iterator[Outputs]:
    from logprobe.monitor.proof.scorers import engine_process  # noqa: PLC0415 - vLLM
    from logprobe.monitor.proof.scorers.forced import READINGS  # noqa: PLC0415

    torch.cuda.empty_cache()  # of the other side; nothing without CUDA
    os.environ[READINGS] = str(folder / "readings.jsonl")
    engine: EngineJob = {
        "model": job["model"],
        "arguments": job["arguments"],
        "overrides": job["overrides"],
        "sequences": job["sequences"],
        "paths": ["decode"],
    }
    yield from engine_process.Scorer(engine).watched(operations=job.get("operations", False))


if __name__ == "__main__":
    answer_job(main)
