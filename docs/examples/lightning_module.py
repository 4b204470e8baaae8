"""A `LightningModule` with a loss of its own, recorded: `LOGPROBE_HOME=/tmp/home LOGPROBE_RUN=lit python docs/examples/lightning_module.py`.

The batches hold what was sampled elsewhere: tokens, the sampler's log-probs, the log-probs from before the first update, advantages and the
number of each sample. What belongs to logprobe is marked with `# logprobe`.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from logprobe.collectors import Recorder  # logprobe

VOCABULARY, LENGTH, SAMPLES, TEMPERATURE = 32, 12, 64, 0.8


class Policy(lightning.LightningModule):
    """Predicts the next token from the last one; clipped policy gradient."""

    def __init__(self, recorder: Recorder | None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.recorder = recorder

    def evaluate(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probs of tokens [batch, 1:] at the temperature that the engine samples with."""
        logits = self.head(torch.tanh(self.embed(tokens[:, :-1]))).float() / TEMPERATURE
        return torch.log_softmax(logits, dim=-1).gather(2, tokens[:, 1:, None]).squeeze(2)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Called once per micro-batch: with gradient accumulation several times per step, each part recorded once."""
        sample, tokens, rollout, old, advantages = batch
        current = self.evaluate(tokens)
        ratio = (current - old).exp()
        loss = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None]).mean()
        if self.recorder is not None:  # logprobe
            self.recorder.training(
                step=self.global_step,  # optimizer steps done so far: the number that Lightning logs this step under
                sample_ids=[str(int(number)) for number in sample],
                token_ids=tokens[:, 1:],
                mask=torch.ones_like(current, dtype=torch.bool),
                rollout_logprobs=rollout,
                trainer_logprobs=old,
                current_logprobs=current,
                advantages=advantages,
                weight_version=0,  # of the weights that gave `old`
            )
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of Lightning."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class RecordLogs(lightning.Callback):
    """logprobe: the scalars that were logged, from one rank; everything durable at the end."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_before_zero_grad(self, trainer: Any, *_: Any) -> None:
        """Once per optimizer step; on the first call nothing has been logged yet."""
        scalars = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.is_global_zero and scalars:
            self.recorder.step(trainer.global_step, scalars)

    def on_train_end(self, *_: Any) -> None:
        """What was flushed survives whatever comes after."""
        self.recorder.flush()


def sampled(policy: Policy) -> TensorDataset:
    """What an engine in bfloat16 would return for random sequences."""
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1))
    with torch.no_grad():
        old = policy.evaluate(tokens)
        engine = Policy(None).to(torch.bfloat16)
        engine.load_state_dict(policy.state_dict())
        rollout = engine.evaluate(tokens)
    return TensorDataset(torch.arange(SAMPLES), tokens, rollout, old, torch.randn(SAMPLES))


def main() -> None:
    """Four steps of two micro-batches."""
    torch.manual_seed(0)
    with Recorder() as recorder:  # logprobe: on every rank; LOGPROBE_HOME, LOGPROBE_RUN
        recorder.config({"temperature": TEMPERATURE, "compute_dtype": "float32"}, kind="trainer_config")
        policy = Policy(recorder)
        quiet = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=4, accumulate_grad_batches=2, callbacks=[RecordLogs(recorder)], **quiet
        )
        trainer.fit(policy, DataLoader(sampled(policy), batch_size=8))


if __name__ == "__main__":
    main()
