"""verl's own loss under every correction: `python verl_losses.py '{"model": …, "out": …}'` writes the losses and what they are made of.

`RayPPOTrainer._update_actor` of v0 hands a made-up batch to a worker that computes verl's `ppo_loss`. Each case is a step of its own, for
which the file of directives has an entry.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["LOGPROBE_CORRECTION"] = "1"

import numpy as np
import torch
import verl_program
from correction_cases import CASES
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from logprobe.collectors import Recorder
from logprobe.collectors.directives import DirectiveFile, Directives

LOSSES = ("vanilla", "cispo", "sapo", "gspo")
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
PROMPT, LONGEST, SEQUENCES = 3, 24, 8


def made_up() -> dict[str, Any]:
    """[batch, time]; log-probs so far apart that every bound has tokens on both of its sides."""
    random = np.random.default_rng(0)
    shape = (SEQUENCES, LONGEST)
    old = -random.gamma(2.0, 0.7, shape)
    rollout = np.minimum(old + random.normal(0, 0.02 * 3.0 ** np.arange(SEQUENCES)[:, None] / 5, shape), -1e-3)
    mask = np.arange(LONGEST) < random.integers(6, LONGEST + 1, (SEQUENCES, 1))
    advantages = np.where(np.arange(SEQUENCES) % 2, 1.0, -0.5)[:, None] * mask
    current = np.minimum(old + random.normal(0, 0.2, shape), -1e-3)
    return {"old": old, "rollout": rollout, "mask": mask, "advantages": advantages, "current": current}


def batch_of(arrays: dict[str, Any]) -> DataProto:
    """As v0 has it before the update; padded."""
    mask = torch.from_numpy(arrays["mask"].astype(np.int64))
    whole = torch.cat([torch.ones(SEQUENCES, PROMPT, dtype=torch.int64), mask], 1)
    tokens = torch.arange(whole.numel()).reshape(whole.shape) % 50 * whole
    columns = {"old": "old_log_probs", "rollout": "rollout_log_probs", "advantages": "advantages"}
    tensors = {theirs: torch.from_numpy(arrays[ours]).float() for ours, theirs in columns.items()}
    tensors |= {
        "input_ids": tokens,
        "prompts": tokens[:, :PROMPT],
        "responses": tokens[:, PROMPT:],
        "response_mask": mask,
    }
    tensors |= {"attention_mask": whole, "position_ids": (whole.cumsum(1) - 1).clamp(min=0)}
    return DataProto.from_dict(tensors, {"uid": np.array([f"p{n // 4}" for n in range(SEQUENCES)], dtype=object)})


def every_loss(options: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """What verl computed, loss and mode → case → loss; what was said of each."""
    said: list[str] = []
    losses: list[float] = []
    report, step = Recorder.report, Recorder.step
    Recorder.report = lambda self, event, *a, **k: (said.append(event), report(self, event, *a, **k))  # type: ignore[method-assign]
    Recorder.step = lambda self, *a, **k: (said.append("acknowledged"), step(self, *a, **k))  # type: ignore[method-assign]
    current, lengths = torch.from_numpy(arrays["current"]).float(), arrays["mask"].sum(1)
    rows = [
        torch.cat([torch.zeros(PROMPT - 1), row[:n], torch.zeros(1)]) for row, n in zip(current, lengths, strict=True)
    ]

    def update_actor(data: Any) -> Any:
        tu.assign_non_tensor(
            data, dp_size=1, batch_num_tokens=int(data["loss_mask"].sum()), global_batch_size=len(data)
        )
        losses.append(float(ppo_loss(actor, {"log_probs": verl_program.jagged(rows)}, data)[0]))
        return tu.get_tensordict({}, {"metrics": {"mfu": [0.0]}})

    found: dict[str, Any] = {"losses": {}, "events": {}}
    for loss, mode in product(LOSSES, MODES):
        stated = {"loss_agg_mode": mode, "policy_loss.loss_mode": loss, "clip_ratio_high": 0.28}
        config = verl_program.configuration(
            {**options, "config": {f"actor_rollout_ref.actor.{name}": value for name, value in stated.items()}}
        )
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        trainer = object.__new__(RayPPOTrainer)
        trainer.config, trainer.actor_rollout_wg = config, SimpleNamespace(update_actor=update_actor)
        key = f"{loss} {mode}"
        found["losses"][key], found["events"][key] = {}, {}
        for place, name in enumerate(["none", *CASES]):
            trainer.global_steps = place + 1
            said.clear()
            trainer._update_actor(batch_of(arrays))
            found["losses"][key][name] = losses[-1]
            found["events"][key][name] = [event for event in said if event in {"acknowledged", "correction_impossible"}]
    return found


def main(options: dict[str, Any]) -> None:
    """Writes `arrays.npz` and `result.json`."""
    directives = Directives(os.environ["LOGPROBE_RUN"])
    for place, config in enumerate(CASES.values()):
        directives = directives.issue(place + 2, config, "a test")
    DirectiveFile(Path(os.environ["LOGPROBE_HOME"]), directives.run).write(directives, None)
    arrays = made_up()
    np.savez(Path(options["out"], "arrays.npz"), **arrays)
    Path(options["out"], "result.json").write_text(json.dumps(every_loss(options, arrays)), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
