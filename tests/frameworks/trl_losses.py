"""TRL's own loss under every correction: `python trl_losses.py '{"model": …, "out": …}'` writes the losses and what they are made of.

One generation of a real engine; log-probs are then moved, so that every bound has tokens on both of its sides. Each case is a step of its own,
for which the file of directives has an entry.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl_program
from correction_cases import CASES

from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.integrations import trl as watching

LOSSES = ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")


def main(options: dict[str, Any]) -> None:
    """Writes `arrays.npz` and `result.json`: what TRL computed, loss type → case → losses of the micro-batches; what was said of each."""
    trl_program.use_cpu_engine("float32")
    trainer = trl_program.trainer_of(options)
    home, run = os.environ["LOGPROBE_HOME"], os.environ["LOGPROBE_RUN"]
    directives = Directives(run)
    for place, config in enumerate(CASES.values()):
        directives = directives.issue(place + 2, config, "a test")
    DirectiveFile(Path(home), run).write(directives, None)
    recorder = watching.watch(trainer, correction=True)
    said: list[list[str]] = []
    report, step = recorder.report, recorder.step
    recorder.report = lambda event, *a, **k: (said.append([event]), report(event, *a, **k))
    recorder.step = lambda number, *a, **k: (said.append(["acknowledged"]), step(number, *a, **k))
    trainer.model.train()
    parts = micro_batches(trainer)
    losses: dict[str, Any] = {}
    events: dict[str, Any] = {}
    for loss in LOSSES:
        trainer.loss_type = trainer.args.loss_type = loss
        for place, name in enumerate(["none", *CASES]):
            trainer.state.global_step = place
            said.clear()
            found = [float(trainer._compute_loss(trainer.model, dict(part)).detach()) for part in parts]
            losses.setdefault(loss, {})[name] = found
            events.setdefault(loss, {})[name] = sorted({event for (event,) in said})
    recorder.close()
    names = ("current", "old_per_token_logps", "sampling_per_token_logps", "completion_mask", "advantages")
    np.savez(
        Path(options["out"], "arrays.npz"), **{name: torch.stack([p[name] for p in parts]).numpy() for name in names}
    )
    document = {"losses": losses, "events": events, "epsilon_high": trainer.epsilon_high}
    Path(options["out"], "result.json").write_text(json.dumps(document), encoding="utf-8")


def micro_batches(trainer: Any) -> list[dict[str, Any]]:
    """One generation, moved and cut as TRL cuts it, but not shuffled."""
    count = trainer.args.steps_per_generation
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    size = trainer.args.per_device_train_batch_size
    whole = trainer._generate_and_score_completions(
        [trainer.train_dataset[place // 4] for place in range(count * size)]
    )
    move(whole)
    rows = [slice(place * size, (place + 1) * size) for place in range(count)]
    return [
        {k: v[part] if isinstance(v, list) or getattr(v, "ndim", 0) else v for k, v in whole.items()} for part in rows
    ]


def move(whole: dict[str, Any]) -> None:
    """In place: sequences end at different lengths, log-probs lie around each other, and one token is absurd."""
    generator = torch.Generator().manual_seed(5)
    old, sampled, mask = (whole[n] for n in ("old_per_token_logps", "sampling_per_token_logps", "completion_mask"))
    for row in range(len(mask)):
        mask[row, mask.shape[1] - row % 5 :] = 0
    whole["num_items_in_batch"].copy_(mask.sum())
    whole["advantages"].copy_(torch.randn(len(mask), generator=generator))
    whole["current"] = old.clone()
    old.add_(0.2 * torch.randn(old.shape, generator=generator)).clamp_(max=-1e-3)
    sampled.copy_((old + 0.3 * torch.randn(old.shape, generator=generator)).clamp(max=-1e-3))
    sampled[1] = (old[1] + 12.0).clamp(max=-1e-3)
    sampled[3] = (old[3] + 0.002 * torch.randn(old[3].shape, generator=generator)).clamp(max=-1e-3)
    old[2, 3] -= 12


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
