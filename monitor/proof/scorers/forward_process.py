"""Process of one forward pass: ``python -m logprobe.monitor.proof.scorers.forward_process JOB.json ANSWER.json``.

A job has `model`, `function` (``module:function``), `settings`, `sequences` and `at_once`, the number of sequences per
call (default: all). The answer has `values` per sequence and its speed, or a one-line `error`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logprobe.monitor.proof.scorers.child import answer_job


def main(job: Mapping[str, Any], _: Path) -> Mapping[str, object]:
    """Call the function and check its result."""
    sys.path.insert(0, job.get("folder", "."))  # a module beside the user's script
    function = function_of(job["function"])
    unknown = sorted(set(job["settings"]) - set(_keywords(function, job["settings"])))
    if unknown:
        raise TypeError(f"{job['function']} takes no setting {', '.join(map(repr, unknown))}")
    began = time.monotonic()
    every = job["sequences"]
    size = job.get("at_once") or max(len(every), 1)
    groups = [every[at : at + size] for at in range(0, max(len(every), 1), size)]
    values = [value for group in groups for value in function(group, Path(job["model"]), **job["settings"])]
    seconds = time.monotonic() - began
    arrays = [np.asarray(_numpy(value), np.float64) for value in values]
    _check(arrays, every, job["function"])
    tokens = sum(len(array) for array in arrays)
    return {
        "values": [[x if np.isfinite(x) else None for x in array.tolist()] for array in arrays],
        "tokens_per_s": tokens / seconds,
    }


def function_of(name: str) -> Callable[..., Sequence[Any]]:
    """Return the function that ``module:function`` names."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Sequence[Any]] = getattr(importlib.import_module(module), attribute)
    return function


def _keywords(function: Callable[..., Any], wanted: Mapping[str, Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(wanted)
    return [parameter.name for parameter in parameters]


def _numpy(value: Any) -> Any:
    """Return a torch tensor of any device and precision as an array."""
    return value.detach().double().cpu().numpy() if hasattr(value, "detach") else value


def _check(arrays: Sequence[Any], sequences: Sequence[Mapping[str, Any]], name: str) -> None:
    if len(arrays) != len(sequences):
        raise ValueError(f"{name} returned {len(arrays)} lists for {len(sequences)} sequences; return one per sequence")
    for index, (array, sequence) in enumerate(zip(arrays, sequences, strict=True)):
        if array.shape != (len(sequence["response_ids"]),):
            raise ValueError(
                f"{name} returned {array.size} log-probs for the {len(sequence['response_ids'])} response tokens of "
                f"sequence {index}"
            )


if __name__ == "__main__":
    answer_job(main)
