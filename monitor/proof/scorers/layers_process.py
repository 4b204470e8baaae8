"""The process that compares hidden states: ``python -m logprobe.monitor.proof.scorers.layers_process JOB.json ANSWER.json``.

A job has `model`, `function` (``module:function``), `settings`, `reference` (settings of the reference) and `sequences`. The answer has
`layers`: name and relative error of the trainer's hidden states, in the order of the reference's forward pass; or `error`, in one line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.modules import module as hooks

from logprobe.monitor.proof import forward
from logprobe.monitor.proof.scorers.child import answer_job
from logprobe.monitor.proof.scorers.forward_process import function_of

_LAYER: Final = re.compile(r"(?:^|\.)(layers|h|blocks)\.(\d+)$")
_EMBEDDING: Final = "embedding"
_States = dict[str, Tensor]  # by layer, in the order in which they ran: [tokens, width]


def main(job: Mapping[str, Any], _: Path) -> Mapping[str, object]:
    """Runs both on one sequence after the other, so that nothing is padded, and compares."""
    sys.path.insert(0, job.get("folder", "."))
    trainer, model = function_of(job["function"]), Path(job["model"])
    differences: dict[str, list[tuple[float, float]]] = {}
    for sequence in job["sequences"]:
        ours = states(partial(forward.score, [sequence], model, **job["reference"]))
        theirs = states(partial(trainer, [sequence], model, **job["settings"]))
        for name, pair in _compared(ours, theirs):
            differences.setdefault(name, []).append(pair)
    if not differences:
        raise ValueError(f"{job['function']} runs no torch module whose layers are named as the checkpoint's")
    errors = {
        name: (sum(off for off, _ in pairs) / max(sum(size for _, size in pairs), 1e-30)) ** 0.5
        for name, pairs in differences.items()
    }
    return {"layers": list(errors.items())}


def states(run: Callable[[], Any]) -> _States:
    """Outputs of the embedding and of each layer while something runs; of a module that ran twice, the first."""
    found: _States = {}
    with _watched(found):
        run()
    return found


@contextmanager
def _watched(found: _States) -> Iterator[None]:
    names: dict[int, str] = {}

    def before(module: Any, _: Any) -> None:
        if id(module) not in names:  # a model that runs for the first time: it names all of its parts
            names.update({id(part): name for name, part in module.named_modules()})

    def after(module: Any, _: Any, output: Any) -> None:
        name = names.get(id(module), "")
        matched = _LAYER.search(name)
        key = _EMBEDDING if isinstance(module, torch.nn.Embedding) else f"layer {matched[2]}" if matched else None
        values = output[0] if isinstance(output, tuple) else output
        if key is not None and key not in found and isinstance(values, Tensor):
            found[key] = values.detach().double().cpu().reshape(-1, values.shape[-1])

    handles = [hooks.register_module_forward_pre_hook(before), hooks.register_module_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _compared(ours: _States, theirs: _States) -> Iterator[tuple[str, tuple[float, float]]]:
    """Squared size of the difference and of the reference, by layer; over the tokens that both have."""
    begin = None
    for name, right in ours.items():
        if name not in theirs or theirs[name].shape[1] != right.shape[1]:
            continue
        begin = _begin(right, theirs[name]) if begin is None else begin
        tokens = min(len(right), len(theirs[name]) - begin)
        other = theirs[name][begin : begin + tokens]
        yield name, (float(((other - right[:tokens]) ** 2).sum()), float((right[:tokens] ** 2).sum()))


def _begin(right: Tensor, other: Tensor) -> int:
    """How many tokens the other put before the first: padding, a BOS."""
    longer = len(other) - len(right)
    if longer <= 0:
        return 0
    return min(range(longer + 1), key=lambda at: float(((other[at : at + len(right)] - right) ** 2).sum()))


if __name__ == "__main__":
    answer_job(main)
