"""The policy of the fault fixtures: a small Qwen3 that writes like Python's own documentation, and its tokenizer.

The text comes with every CPython (`pydoc_data.topics`), so nothing is downloaded. A policy that has learned a language is as sure
of some tokens and as undecided about others as a real one, which faults of the sampling distribution need to show.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

import torch
from fault_case import Size
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

PAD, BOS, EOS = 0, 1, 2
LENGTH: Final = 256  # prompt and answer together, in tokens
EXCERPT: Final = 128  # tokens of one example in pretraining
BATCH: Final = 16
RATE: Final = 3e-3
_PARTS: Final = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}  # of a stack of experts
HEAD: Final = 32  # of attention; the smallest the CPU engine takes


def paragraphs() -> list[str]:
    """The text in pieces that end where a paragraph ends."""
    whole = "\n\n".join(topics[name] for name in sorted(topics))
    return [piece.strip() for piece in re.split(r"\n{2,}", whole) if piece.strip()]


class Language:
    """A byte-pair tokenizer and the token ids of the text.

    Args:
        vocabulary: number of tokens, three special ones included.
    """

    def __init__(self, vocabulary: int) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = ["<pad>", "<bos>", "<eos>"]
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(paragraphs(), trainer)
        self.tokenizer = tokenizer
        encoded = tokenizer.encode_batch(paragraphs())
        self.text = [token for piece in encoded for token in (BOS, *piece.ids, EOS)]

    def excerpt(self, rng: random.Random, length: int) -> list[int]:
        """`length` tokens from anywhere in the text."""
        start = rng.randrange(len(self.text) - length)
        return self.text[start : start + length]

    def decode(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens left out."""
        return str(self.tokenizer.decode(token_ids))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special ones."""
        return list(self.tokenizer.encode(text).ids)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer where an engine looks for it."""
        fast = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token="<eos>", pad_token="<pad>")
        fast.save_pretrained(folder)


def build(size: Size, seed: int) -> PreTrainedModel:
    """A freshly initialised policy, float32."""
    torch.manual_seed(seed)
    common = {
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "head_dim": HEAD,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": False,
        "initializer_range": 0.05,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "dtype": "float32",
    }
    if not size.experts:
        return Qwen3ForCausalLM(Qwen3Config(**common))
    mixture = {"num_experts": size.experts, "num_experts_per_tok": 2, "moe_intermediate_size": size.hidden}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**common, **mixture, norm_topk_prob=True))


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Copies of all weights under the names they have in a checkpoint, where experts are not stacked."""
    named: dict[str, Tensor] = {}
    for name, stacked in model.state_dict().items():
        layer, is_stack, kind = name.partition(".experts.")
        parts = _PARTS[kind] if is_stack else ()
        for expert, tensor in enumerate(stacked if is_stack else ()):
            pieces = zip(parts, tensor.chunk(len(parts)), strict=True)
            named |= {f"{layer}.experts.{expert}.{part}.weight": piece.clone() for part, piece in pieces}
        if not is_stack:
            named[name] = stacked.clone()
    return named


def pretrained(size: Size, seed: int, language: Language, kept: Path, report: Callable[[str], None]) -> PreTrainedModel:
    """The policy after `size.steps` of next-token prediction; depends on size and seed alone, and is kept in `kept`."""
    model = build(size, seed)
    file = kept / f"language-{size}-seed{seed}.pt"
    if file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))
        return model
    _pretrain(model, size.steps, seed, language, report)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), file)
    return model


def _pretrain(model: PreTrainedModel, steps: int, seed: int, language: Language, report: Callable[[str], None]) -> None:
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        tokens = torch.tensor([language.excerpt(rng, EXCERPT) for _ in range(BATCH)])
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            report(f"pretraining step {step}: loss {loss.item():.3f}")
