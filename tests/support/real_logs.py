"""Logs made by the frameworks' own writers: W&B without a network, TensorBoard, transformers' trainer state. Run as a program.

    python tests/support/real_logs.py KIND PATH STEPS

A process of its own, because these packages warn about themselves, and W&B leaves a helper behind that belongs to its process.
"""

from __future__ import annotations

import sys
from pathlib import Path


def loss(step: int) -> float:
    """What is logged at a step; exact in float32."""
    return 1.0 / 2 ** (step % 20)


def wandb(path: Path, steps: int) -> None:
    """A run without a network; the file is ``path/wandb/offline-run-…/run-real.wandb``."""
    import wandb

    quiet = {"console": "off", "silent": True, "disable_git": True, "x_disable_stats": True, "x_disable_meta": True}
    path.mkdir(parents=True, exist_ok=True)
    run = wandb.init(mode="offline", project="p", id="real", dir=str(path), settings=wandb.Settings(**quiet))
    for step in range(1, steps + 1):
        text = "x" * 40_000 if step == 2 else "x"  # longer than a block of the file
        run.log({"loss": loss(step), "text": text, "inner": {"k3": 0.5}, "hist": wandb.Histogram([1, 2])}, step=step)
    run.finish()


def trainer_wandb(path: Path, steps: int) -> None:
    """What the W&B callback of transformers and a profiler of TRL log: several calls per step, and a metric that says which step it is."""
    import wandb

    quiet = {"console": "off", "silent": True, "disable_git": True, "x_disable_stats": True, "x_disable_meta": True}
    path.mkdir(parents=True, exist_ok=True)
    run = wandb.init(mode="offline", project="p", id="real", dir=str(path), settings=wandb.Settings(**quiet))
    run.define_metric("train/global_step")
    run.define_metric("*", step_metric="train/global_step", step_sync=True)
    for step in range(1, steps + 1):
        run.log({"train/loss": loss(step), "train/global_step": step})
        for _ in range(8):
            run.log({"profiling/time": 0.5})
    run.finish()


def tensorboard(path: Path, steps: int) -> None:
    """Scalars of both kinds: as v1 and torch write them, and as v2 does."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(path))
    for step in range(1, steps + 1):
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=loss(step))])
        writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=summary))
        writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=scalar_pb("tensor", 0.5)))
    writer.close()


def trainer_state(path: Path, steps: int) -> None:
    """``trainer_state.json`` as TRL's trainers save it: with the state class of transformers."""
    from transformers.trainer_callback import TrainerState

    history = [{"step": step, "loss": loss(step), "epoch": step / 10} for step in range(1, steps + 1)]
    path.mkdir(parents=True, exist_ok=True)
    TrainerState(global_step=steps, log_history=history).save_to_json(str(path / "trainer_state.json"))


if __name__ == "__main__":
    {"wandb": wandb, "trainer_wandb": trainer_wandb, "tensorboard": tensorboard, "scalars": trainer_state}[sys.argv[1]](
        Path(sys.argv[2]), int(sys.argv[3])
    )
