"""Rows of other programs' files → the columns of a sample. Pure.

Frameworks keep a sequence in one of two ways: prompt and response apart, perhaps padded, or all tokens with a mask over
those that were sampled. Names are those of TRL, verl, prime-rl, NeMo-RL, open-instruct, slime, SkyRL, PipelineRL,
vLLM's responses, and logprobe's own training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "sample_id": ("sample_id", "request_id", "id", "uid", "index", "sample_idx", "export_sequence_idx", "idx"),
    "prompt_ids": ("prompt_ids", "prompt_token_ids", "prompt_tokens", "prompts"),
    "response_ids": ("response_ids", "completion_ids", "response_token_ids", "response_tokens", "responses"),
    "token_ids": ("token_ids", "tokens", "input_ids"),
    "mask": ("mask", "loss_mask", "token_loss_mask", "response_mask", "completion_mask"),
    "prompt_mask": ("prompt_mask", "attention_mask"),
    "rollout_logprobs": (
        "rollout_logprobs",
        "rollout_log_probs",
        "generation_logprobs",
        "inference_logprobs",
        "sampling_per_token_logps",
        "logprobs",
    ),
    "trainer_logprobs": (
        "trainer_logprobs",
        "old_log_probs",
        "old_logprobs",
        "prev_logprobs",
        "old_per_token_logps",
        "log_probs",
    ),
    "temperature": ("temperature", "temperatures"),
    "rollout_version": ("rollout_version", "weight_versions"),
    "trainer_version": ("trainer_version", "weight_version"),
}
_LOGPROBS: Final = ("rollout_logprobs", "trainer_logprobs")
_LISTS: Final = ("prompt_ids", "response_ids", "token_ids")
_TEXTS: Final = ("prompt", "completion", "input", "output", "input_prompt", "output_response", "text")
_LEFT_OUT: Final = -100  # label of a token that is not trained on


def columns(row: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    """The sequences of a row, in the columns of a sample; a response of vLLM has one per choice. Raises
    `ConfigurationError`."""
    answers = row.get("choices") or row.get("outputs")
    if isinstance(answers, list):
        for number, answer in enumerate(answers):
            yield _of_response(row, answer, f"{row.get('id') or row.get('request_id') or place}-{number}")
        return
    sequence = {name: value for name in _NAMES if (value := _value(row, name)) is not None}
    sequence |= {name: row[name] for name in ("sampling", "spans", "replica") if row.get(name) is not None}
    if "prompt_ids" not in sequence and "token_ids" not in sequence:
        raise ConfigurationError(_without_ids(row, place))
    yield {"sample_id": place, **_apart(sequence, row.get("response_length"), row.get("input_lengths"), place)}


def _value(row: Mapping[str, Any], name: str) -> Any:
    """Under whatever name; NeMo-RL writes batches of one, prime-rl a temperature per token."""
    values = (row[alias] for alias in _NAMES[name] if row.get(alias) is not None)
    value = next((value for value in values if name not in _LISTS or isinstance(value, list)), None)
    if name == "mask" and value is None and isinstance(row.get("labels"), list):  # PipelineRL
        value = [label != _LEFT_OUT for label in row["labels"]]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if name in ("temperature", "rollout_version") and isinstance(value, list):
        value = value[0] if value and all(item == value[0] for item in value) else None
    return value


def _apart(sequence: dict[str, Any], response_length: Any, length: Any, place: str) -> dict[str, Any]:
    """With prompt and response, however they were written."""
    mask, prompt_mask = sequence.pop("mask", None), sequence.pop("prompt_mask", None)
    tokens = sequence.pop("token_ids", None)
    if "response_ids" in sequence and "prompt_ids" in sequence:
        return _unpadded(sequence, mask, prompt_mask)
    if tokens is None or (response_length is None and mask is None):
        raise ConfigurationError(_without_ids(sequence, place))
    end = _single(length) if length is not None else len(tokens)
    start, end = (len(tokens) - response_length, len(tokens)) if response_length is not None else _sampled(mask, end)
    if start < 1:
        raise ConfigurationError(f"{place}: the mask begins with the first token; the prompt's token ids are missing")
    for name in _LOGPROBS:
        if len(sequence.get(name) or ()) == len(tokens):
            sequence[name] = sequence[name][start:end]
    if mask is not None and len(mask) in (len(tokens), end - start):
        _blank(sequence, mask[start:end] if len(mask) == len(tokens) else mask)
    prompt = tokens[:start]
    if prompt_mask is not None and len(prompt_mask) == len(tokens):
        prompt = [token for token, flag in zip(prompt, prompt_mask, strict=False) if flag]
    return {**sequence, "prompt_ids": prompt, "response_ids": tokens[start:end]}


def _without_ids(row: Mapping[str, Any], place: str) -> str:
    """What a file lacks to be scored again, and what each column would allow."""
    texts = [name for name in _TEXTS if name in row]
    there = (
        f"texts ({', '.join(texts)}) and no token ids; a text is not enough: re-tokenized, it may give others"
        if texts
        else "no token ids"
    )
    return (
        f"{place}: {there}. Needed are prompt and response ({' or '.join(_NAMES['prompt_ids'])}; "
        f"{' or '.join(_NAMES['response_ids'])}), or all "
        f"tokens with a mask ({' or '.join(_NAMES['token_ids'])}; {' or '.join(_NAMES['mask'])}): with these, a fresh "
        "engine and the reference "
        "are compared; with rollout_logprobs also the engine as it ran, with trainer_logprobs the trainer"
    )


def _unpadded(sequence: dict[str, Any], mask: Any, prompt_mask: Any) -> dict[str, Any]:
    prompt, response = sequence["prompt_ids"], sequence["response_ids"]
    if prompt_mask is not None:  # of the prompt, or of prompt and response; padded on the left
        prompt = [token for token, flag in zip(prompt, prompt_mask, strict=False) if flag]
    end = len(response)
    if mask is not None and len(mask) == len(response):
        _, end = _sampled(mask, end)
        _blank(sequence, mask[:end])
    for name in _LOGPROBS:
        if sequence.get(name) is not None:
            sequence[name] = sequence[name][:end]
    return {**sequence, "prompt_ids": prompt, "response_ids": response[:end]}


def _sampled(mask: Sequence[Any], length: int) -> tuple[int, int]:
    """First and after the last token under the mask."""
    under = [at for at, flag in enumerate(mask[:length]) if flag]
    return (under[0], under[-1] + 1) if under else (0, 0)


def _blank(sequence: dict[str, Any], mask: Sequence[Any]) -> None:
    """What a tool wrote within a response has no log-prob, whatever the program wrote there."""
    for name in _LOGPROBS:
        values = sequence.get(name)
        if values is not None and len(values) >= len(mask):
            sequence[name] = [value if flag else None for value, flag in zip(values, mask, strict=False)]


def _of_response(row: Mapping[str, Any], answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A choice of vLLM's server, or an output of `LLM.generate` as a document."""
    prompt = answer.get("prompt_token_ids") or row.get("prompt_token_ids")
    tokens = answer.get("token_ids")
    if prompt is None or tokens is None:
        raise ConfigurationError(
            f"{name}: no token ids; ask vLLM for them with return_token_ids=true, and for logprobs=0 to compare them"
        )
    return {
        "sample_id": name,
        "prompt_ids": prompt,
        "response_ids": tokens,
        "rollout_logprobs": _reported(answer.get("logprobs"), tokens),
    }


def _reported(logprobs: Any, tokens: Sequence[int]) -> list[float] | None:
    if isinstance(logprobs, Mapping):
        content = logprobs.get("content")
        return [token["logprob"] for token in content] if content else logprobs.get("token_logprobs")
    if isinstance(logprobs, list):
        values = [entry.get(str(token), entry.get(token)) for entry, token in zip(logprobs, tokens, strict=True)]
        return [value["logprob"] if isinstance(value, Mapping) else value for value in values]
    return None


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value
