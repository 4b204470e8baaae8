"""ms-swift's own loss under every correction: `python ms_swift_losses.py '{"model": …, "out": …}'` writes the losses and what they are made of.

The first micro-batches of a real engine; log-probs are then moved, so that every bound has tokens on both of its sides. Each case is a step of its
own, for which the file of directives has an entry.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["LOGPROBE_CORRECTION"] = "1"

import ms_swift_program
import numpy as np
import torch
from correction_cases import CASES
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

from logprobe.collectors import Recorder
from logprobe.collectors.directives import DirectiveFile, Directives

LOSSES = ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo")


class DoneError(Exception):
    """Nothing needs to be trained."""


def main(options: dict[str, Any]) -> None:
    """Writes `arrays.npz` and `result.json`: what ms-swift computed, loss type → case → losses of the micro-batches; what was said of each."""
    directives = Directives(os.environ["LOGPROBE_RUN"])
    for place, config in enumerate(CASES.values()):
        directives = directives.issue(place + 2, config, "a test")
    DirectiveFile(Path(os.environ["LOGPROBE_HOME"]), directives.run).write(directives, None)

    def training_step(trainer: Any, model: Any, inputs: Any, *_: Any, **__: Any) -> None:
        model.train()
        trainer._prepare_inputs(inputs)
        Path(options["out"], "result.json").write_text(
            json.dumps(every_loss(trainer, model, options)), encoding="utf-8"
        )
        raise DoneError

    GRPOTrainer.training_step = training_step
    with contextlib.suppress(DoneError):
        ms_swift_program.main(options)


def every_loss(trainer: Any, model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Of all micro-batches of a generation."""
    said: list[str] = []
    report, step = Recorder.report, Recorder.step
    Recorder.report = lambda self, event, *a, **k: (said.append(event), report(self, event, *a, **k))
    Recorder.step = lambda self, *a, **k: (said.append("acknowledged"), step(self, *a, **k))
    parts = trainer._buffered_inputs
    move([part["grpo_batch"] for part in parts])
    losses: dict[str, Any] = {}
    events: dict[str, Any] = {}
    for loss in LOSSES:
        trainer.loss_type = trainer.args.loss_type = loss
        for place, name in enumerate(["none", *CASES]):
            trainer.state.global_step = place
            said.clear()
            found = [float(trainer.compute_loss(model, dict(part)).detach()) for part in parts]
            losses.setdefault(loss, {})[name] = found
            events.setdefault(loss, {})[name] = sorted(set(said))
    write_arrays(trainer, model, parts, Path(options["out"], "arrays.npz"))
    return {
        "losses": losses,
        "events": events,
        "epsilon_high": trainer.epsilon_high,
        "tau": [trainer.tau_pos, trainer.tau_neg],
    }


def write_arrays(trainer: Any, model: Any, parts: list[dict[str, Any]], file: Path) -> None:
    batches = [part["grpo_batch"] for part in parts]
    with torch.no_grad():
        current = [
            trainer._get_per_token_logps_and_entropies(model, p["model_inputs"], p["grpo_batch"])[0] for p in parts
        ]
    old = [
        now if batch.old_per_token_logps is None else batch.old_per_token_logps
        for now, batch in zip(current, batches, strict=True)
    ]
    arrays = {
        "current": current,
        "old": old,
        "rollout": [batch.rollout_per_token_logps for batch in batches],
        "mask": [batch.completion_mask for batch in batches],
        "advantages": [batch.advantages for batch in batches],
    }
    named = {f"{name}{place}": array.numpy() for name, rows in arrays.items() for place, array in enumerate(rows)}
    np.savez(file, **named)


def move(batches: list[Any]) -> None:
    """In place: sequences end at different lengths, log-probs lie around each other, and one token is absurd."""
    generator = torch.Generator().manual_seed(5)
    for batch in batches:
        mask, rollout, old = batch.completion_mask, batch.rollout_per_token_logps, batch.old_per_token_logps
        for row in range(len(mask)):
            mask[row, mask.shape[1] - row % 5 :] = False
        batch.advantages.copy_(torch.randn(len(mask), 1, generator=generator).expand(mask.shape))
        if old is not None:
            old.add_(0.2 * torch.randn(old.shape, generator=generator)).clamp_(max=-1e-3)
            old[2, 3] -= 12
        rollout.add_(0.3 * torch.randn(rollout.shape, generator=generator)).clamp_(max=-1e-3)
        rollout[1].add_(12).clamp_(max=-1e-3)
    total = sum(batch.completion_mask.sum() for batch in batches)
    for batch in batches:
        batch.num_items_in_batch = total


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
