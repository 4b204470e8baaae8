"""A loss of your own in the Hugging Face `Trainer`, recorded: `LOGPROBE_HOME=/tmp/home LOGPROBE_RUN=hf python docs/examples/hf_trainer.py`.

The batches hold what was sampled elsewhere: tokens, the sampler's log-probs, the log-probs from before the first update, advantages and the
number of each sample. What belongs to logprobe is marked with `# logprobe`.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments

from logprobe.collectors import Recorder  # logprobe

VOCABULARY, LENGTH, SAMPLES, TEMPERATURE = 32, 12, 64, 0.8


def policy() -> PreTrainedModel:
    """A language model small enough for a test."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes))


def evaluate(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of tokens [batch, 1:] at the temperature that the engine samples with."""
    logits = model(input_ids=tokens).logits[:, :-1].float() / TEMPERATURE
    return torch.log_softmax(logits, dim=-1).gather(2, tokens[:, 1:, None]).squeeze(2)


def sampled(model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    """What an engine in bfloat16 would return for random sequences."""
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1))
    with torch.no_grad():
        old = evaluate(model, tokens)
        rollout = evaluate(model.to(torch.bfloat16), tokens).float()
    model.to(torch.float32)
    columns = {"tokens": tokens, "rollout": rollout, "old": old, "advantages": torch.randn(SAMPLES)}
    return [
        {name: values[row] for name, values in columns.items()} | {"sample": torch.tensor(row)}
        for row in range(SAMPLES)
    ]


class PolicyTrainer(Trainer):
    """Clipped policy gradient."""

    def __init__(self, *arguments: Any, recorder: Recorder, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.recorder = recorder

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: Any = None, **_: Any) -> Any:
        """Called once per micro-batch: with gradient accumulation several times per step, each part recorded once."""
        current = evaluate(model, inputs["tokens"])
        advantages = inputs["advantages"][:, None]
        ratio = (current - inputs["old"]).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        if model.training:  # logprobe: not in evaluation
            step = self.state.global_step + 1  # the number that the Trainer logs this step under, after the update
            self.recorder.training(
                step=step,
                sample_ids=[str(int(number)) for number in inputs["sample"]],
                token_ids=inputs["tokens"][:, 1:],
                mask=torch.ones_like(current, dtype=torch.bool),
                rollout_logprobs=inputs["rollout"],
                trainer_logprobs=inputs["old"],
                current_logprobs=current,
                advantages=inputs["advantages"],
                weight_version=0,  # of the weights that gave `old`
            )
        return (loss, None) if return_outputs else loss


class RecordLogs(TrainerCallback):
    """logprobe: the Trainer's own scalars, from one rank; everything durable at the end."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, Any], **___: Any) -> None:
        """Mean over all ranks; the summary at the end is not a step."""
        if state.is_world_process_zero and "train_runtime" not in logs:
            self.recorder.step(state.global_step, {k: v for k, v in logs.items() if isinstance(v, int | float)})

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """What was flushed survives whatever comes after."""
        self.recorder.flush()


def main() -> None:
    """Four steps of two micro-batches."""
    torch.manual_seed(0)
    model = policy()
    data = sampled(model)
    settings = TrainingArguments(
        output_dir="/tmp/hf-trainer",  # noqa: S108 - nothing is saved
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
    )
    with Recorder() as recorder:  # logprobe: on every rank; LOGPROBE_HOME, LOGPROBE_RUN
        recorder.config({"temperature": TEMPERATURE, "compute_dtype": "float32"}, kind="trainer_config")
        callbacks = [RecordLogs(recorder)]
        PolicyTrainer(model, settings, train_dataset=data, recorder=recorder, callbacks=callbacks).train()


if __name__ == "__main__":
    main()
