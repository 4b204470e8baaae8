"""The policy: a tiny Qwen3 in float32, its supervised pretraining and its log-probabilities."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from task import BOS, EOS, PAD, TASKS, VOCABULARY, encode
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

FLAWED: Final = 0.3  # fraction of wrong characters in the last demonstrations
PRETRAINING_RATE: Final = 3e-3
MAX_LENGTH: Final = 96  # prompt and answer together, in tokens
MAX_ANSWER_TOKENS: Final = 20


def build(seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised policy of about 0.45 M parameters."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        initializer_range=0.05,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Writes a checkpoint an engine can start from."""
    model.save_pretrained(folder)


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Token ids as one int64 tensor [batch, time], padded at the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sequences], batch_first=True, padding_value=PAD)


def answer_logits(
    model: Qwen3ForCausalLM, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> Tensor:
    """Logits that predict each answer token, float32 [answer tokens of all sequences, vocabulary], in order.

    Padding stands at the right of a causal model, where no answer can see it, so no attention mask is needed.
    """
    inputs = padded([[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)])
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    width = inputs.shape[1]
    rows = [
        torch.arange(len(prompt) - 1, len(prompt) - 1 + len(answer)) + index * width
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    return model.lm_head(hidden.reshape(-1, hidden.shape[-1])[torch.cat(rows)])


def pretrain(model: Qwen3ForCausalLM, *, steps: int, seed: int, report: Callable[[str], None]) -> None:
    """Teaches the tasks by next-token prediction of the answers, towards the end from flawed demonstrations."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PRETRAINING_RATE, total_steps=steps, pct_start=0.05
    )
    for step in range(steps):
        flawed = FLAWED if step > 0.8 * steps else 0.0
        lessons = [_lesson(rng, flawed) for _ in range(16)]
        loss = _answer_loss(model, lessons)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            report(f"pretraining step {step}: loss {loss.item():.3f}")


def _lesson(rng: random.Random, flawed: float) -> tuple[list[int], list[bool]]:
    """Token ids of several worked examples in a row, and which of them are answers."""
    task = rng.choice(TASKS)
    tokens, answers = [BOS, *encode(f"{task.marker}:")], [False] * 3
    while True:
        problem = task.sample(rng, lengths=(2, task.lengths[1]))
        question = encode(f"{problem.query}>")
        answer = [*_flawed(encode(problem.answer), rng, flawed)]
        if len(tokens) + len(question) + len(answer) + 1 > MAX_LENGTH:
            return tokens, answers
        tokens += [*question, *answer, *encode(";")]
        answers += [False] * len(question) + [True] * (len(answer) + 1)


def _flawed(answer: list[int], rng: random.Random, rate: float) -> list[int]:
    """The answer with some characters exchanged, as in careless demonstrations; reinforcement learning can mend that."""
    return [rng.choice(answer) if rng.random() < rate else token for token in answer]


def _answer_loss(model: Qwen3ForCausalLM, lessons: Sequence[tuple[list[int], list[bool]]]) -> Tensor:
    tokens = padded([tokens for tokens, _ in lessons])
    is_answer = padded([answers for _, answers in lessons])[:, 1:].bool()
    hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[is_answer]), tokens[:, 1:][is_answer])
