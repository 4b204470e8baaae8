"""Log-probs of a plain transformers forward pass, for the neutral reference q and the shipped trainer t′.

A function for ``--trainer module:function`` has the signature of `score`. It takes the sequences and the checkpoint,
and returns one list of log-probs per sequence. Further keyword arguments are settings that `logprobe bisect` may
change. A missing one is reported as not testable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logprobe.monitor.proof.scorers.jobs import Sampled


def score(
    sequences: Sequence[Mapping[str, Any]],
    model: Path,
    *,
    dtype: str = "float32",
    head_dtype: str | None = None,
    attn_implementation: str = "eager",
    temperature: float | None = None,
    dropout: float = 0.0,
    shift: int = 0,
    mask_shift: int = 0,
    packing: bool = False,
) -> list[list[float]]:
    """Return the log-probs of the response tokens.

    Args:
        sequences: sequences with `prompt_ids`, `response_ids` and `temperature`.
        model: folder of a Hugging Face checkpoint.
        dtype: type of weights and activations.
        head_dtype: type of the last matrix product, or None for `dtype`.
        attn_implementation: attention implementation by its name in transformers.
        temperature: override of the sequences' temperatures.
        dropout: probability of attention dropout. Above 0, the model is in training mode.
        shift: delay of the logits in positions, correct if 0.
        mask_shift: delay of the response mask in positions, correct if 0. Else the log-probs are those of neighbouring
            tokens.
        packing: true to put all sequences into one row without boundaries, like a trainer that fails to reset
            attention.

    Returns:
        One list per sequence, computed from logits in float32, or float64 if `dtype` is float64.
    """
    network = _network(model, dtype, attn_implementation, dropout)
    wide = torch.float64 if dtype == "float64" else torch.float32
    answers = []
    before: list[int] = []
    for sequence in sequences:
        context, response = [*before, *sequence["prompt_ids"]], sequence["response_ids"]
        with torch.no_grad():
            logits = _logits(network, [*context, *response], head_dtype)
        first = len(context) + mask_shift
        scaled = _rows(logits, first - 1 + shift, len(response)).to(wide) / (temperature or sequence["temperature"])
        tokens = _rows(torch.tensor([*context, *response], device=logits.device), first, len(response))
        answers.append(scaled.log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist())
        if packing:
            before = [*context, *response][-_room(network, sequences) :]
    return answers


def sample(
    prompts: Sequence[Sequence[int]], model: Path, tokens: int, dtype: str = "bfloat16", temperature: float = 1.0
) -> list[Sampled]:
    """Return answers of `tokens` tokens with their log-probs, decoded token by token with a cache, as in an engine."""
    network = _network(model, dtype, "eager", 0.0)
    answers: list[Sampled] = []
    for prompt in prompts:
        inputs, cache = torch.tensor([list(prompt)], device=network.device), None
        ids: list[int] = []
        logprobs: list[float] = []
        for _ in range(tokens):
            with torch.no_grad():
                output = network(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache, scores = output.past_key_values, (output.logits[0, -1].float() / temperature).log_softmax(-1)
            token = int(torch.multinomial(scores.exp(), 1))
            ids.append(token)
            logprobs.append(float(scores[token]))
            inputs = torch.tensor([[token]], device=network.device)
        answers.append({"prompt_ids": list(prompt), "response_ids": ids, "rollout_logprobs": logprobs})
    return answers


def _network(model: Path, dtype: str, attn_implementation: str, dropout: float) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - heavy

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model, local_files_only=True)
    if dropout:
        config.attention_dropout = dropout
    network = AutoModelForCausalLM.from_pretrained(
        model,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=attn_implementation,
        local_files_only=True,
    )
    if dropout:  # two trainers never draw the same masks
        torch.seed()
    network.train(dropout > 0)
    return network.to("cuda" if torch.cuda.is_available() else "cpu")


def _logits(network: Any, ids: Sequence[int], head_dtype: str | None) -> Tensor:
    """Return the model's logits [tokens, vocabulary]. With `head_dtype` the last product is computed here."""
    inputs = torch.tensor([list(ids)], device=network.device)
    if head_dtype is None:
        logits: Tensor = network(input_ids=inputs, use_cache=False).logits[0]
        return logits
    hidden = network.base_model(input_ids=inputs, use_cache=False).last_hidden_state[0]
    dtype = getattr(torch, head_dtype)
    product: Tensor = hidden.to(dtype) @ network.get_output_embeddings().weight.to(dtype).T
    return product


def _rows(values: Tensor, start: int, length: int) -> Tensor:
    """Return `length` positions from `start`. Repeat the last position beyond the end, in place of a batch's
    padding.
    """
    places = torch.arange(start, start + length, device=values.device).clamp(0, len(values) - 1)
    return values[places]


def _room(network: Any, sequences: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of tokens of earlier sequences that fit in front of the longest one."""
    longest = max(len(sequence["prompt_ids"]) + len(sequence["response_ids"]) for sequence in sequences)
    most = int(network.config.max_position_embeddings)
    return max(min(most - longest, 4 * longest), 1)
