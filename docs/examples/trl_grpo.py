"""TRL's GRPO, recorded: `LOGPROBE_HOME=/tmp/home LOGPROBE_RUN=grpo python docs/examples/trl_grpo.py`.

A tiny policy of random weights learns to write even numbers; nothing is downloaded, and a CPU is enough. With `--vllm` the samples come from a
colocated vLLM engine, whose log-probs logprobe compares with the trainer's. Two lines belong to logprobe; they are marked with `# logprobe`.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from logprobe.collectors.integrations import trl  # logprobe

FOLDER = tempfile.mkdtemp(prefix="trl-grpo-")  # of the model
NUMBERS = 100
PAD, EOS = "<pad>", "<eos>"


def save_model() -> None:
    """A language model whose words are numbers."""
    words = {PAD: 0, EOS: 1, **{str(number): 2 + number for number in range(NUMBERS)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS).save_pretrained(FOLDER)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 32,
    }
    tokens = {"vocab_size": len(words), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    Qwen3ForCausalLM(Qwen3Config(num_key_value_heads=1, dtype="float32", **sizes, **tokens)).save_pretrained(FOLDER)


def even(completions: list[str], **_: Any) -> list[float]:
    """Share of even numbers."""
    found = [[int(word) % 2 == 0 for word in text.split() if word.isdigit()] for text in completions]
    return [sum(flags) / max(len(flags), 1) for flags in found]


def load_on_a_cpu(engine: Any) -> None:
    """Load the trainer's weights at once: vLLM's CPU build packs linear weights, so TRL's tensor by tensor fails there."""
    weights = [(name, parameter.detach().clone()) for name, parameter in engine._iter_named_params()]  # noqa: SLF001 - TRL names no other
    engine.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    engine.llm.reset_prefix_cache()


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        VLLMGeneration.sync_weights = load_on_a_cpu
    save_model()
    prompts = [" ".join(str((7 * row + column) % NUMBERS) for column in range(4)) for row in range(64)]
    settings = GRPOConfig(
        output_dir=FOLDER,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        num_iterations=2,
        max_steps=12,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        use_vllm="--vllm" in sys.argv,
        vllm_mode="colocate",
    )
    trainer = GRPOTrainer(FOLDER, even, settings, train_dataset=Dataset.from_dict({"prompt": prompts}))
    trl.watch(trainer)  # logprobe
    trainer.train()


if __name__ == "__main__":
    main()
