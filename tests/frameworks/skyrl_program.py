"""SkyRL's own batch, padding, prompt boundaries and callback events: `python skyrl_program.py FOLDER`; writes what they held to FOLDER/events.npz.

SkyRL's trainer needs GPUs. Its functions that build a training batch and its callback handler are called here as the trainer calls them.
"""

from __future__ import annotations

import random
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # SkyRL's types need Python 3.12's

from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch, pad_training_input_batch  # noqa: E402
from skyrl.train.dataset.preprocess import compute_prompt_boundaries, convert_prompts_responses_to_batch_tensors  # noqa: E402
from skyrl.train.utils.callbacks import CallbackHandler, CallbackInput, TrainingControl  # noqa: E402

from logprobe.collectors.integrations import skyrl  # noqa: E402


class RayPPOTrainer:
    """What SkyRL documents as the surface that callbacks see."""

    def __init__(self) -> None:
        sampling = SimpleNamespace(temperature=0.7, top_p=1.0, top_k=-1, min_p=0.0)
        algorithm = SimpleNamespace(advantage_estimator="grpo", policy_loss_type="regular", temperature=0.7)
        self.cfg = SimpleNamespace(
            trainer=SimpleNamespace(algorithm=algorithm, run_name="tiny", bf16=True, strategy="fsdp2"),
            generator=SimpleNamespace(sampling_params=sampling, n_samples_per_prompt=2),
        )


def batch(step: int) -> Any:
    """Four answers of two prompts, and two rows of padding."""
    rng = random.Random(step)
    uids = ["p", "p", "q", "q"]
    prompts = [[rng.randrange(2, 99) for _ in range(3 + n)] for n in range(4)]
    responses = [[rng.randrange(2, 99) for _ in range(2 + n)] for n in range(4)]
    masks = [[1] * (2 + n) for n in range(4)]
    masks[3][1] = 0  # a tool's answer
    sampled = [[-rng.random() for _ in row] for row in responses]
    rewards = [[0.0] * (len(row) - 1) + [1.0] for row in responses]
    sequences, attention, response, _, loss, rollout, _ = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0), prompts, responses, rewards, masks, sampled
    )
    made = TrainingInputBatch(
        {
            "sequences": sequences,
            "attention_mask": attention,
            "response_mask": response,
            "loss_mask": loss,
            "rollout_logprobs": rollout,
        }
    )
    made.metadata = {"policy_prompt_boundaries": compute_prompt_boundaries(uids), "response_length": response.shape[1]}
    made = pad_training_input_batch(made, 2)
    made["action_log_probs"] = made["rollout_logprobs"] - 0.01
    made["advantages"] = torch.ones_like(made["rollout_logprobs"])
    return made


def main(folder: Path) -> None:
    """Two steps as `RayPPOTrainer.train` fires them."""
    trainer, control, handler = RayPPOTrainer(), TrainingControl(), CallbackHandler()
    handler.add(skyrl.callback())
    kept: dict[str, Any] = {}
    for step in (1, 2):
        counters = {"global_step": step, "epoch": 0, "total_steps": 2, "steps_per_epoch": 2}
        made = batch(step)
        kept |= {f"{step}.{name}": value.numpy() for name, value in made.items()}
        handler.on_step_end(trainer, CallbackInput(**counters, batch=made, metrics={}), control)
        handler.on_log(
            trainer,
            CallbackInput(**counters, logs={"loss/avg_final_rewards": 0.5, "eval/all/x": 1.0, "text": "x"}),
            control,
        )
    handler.on_train_end(trainer, CallbackInput(global_step=2, epoch=0, total_steps=2, steps_per_epoch=2), control)
    assert (control.should_save, control.should_evaluate) == (False, False)
    np.savez_compressed(folder / "events.npz", **kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
