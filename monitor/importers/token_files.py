"""Token files of other frameworks → training and rollout rows. docs/importing.md says what each field becomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.monitor.importers.rows import FLOAT_LISTS, BadRowError, Row, integers, rollout, training
from logprobe.monitor.importers.source import Place

_NEMO_STEP: Final = re.compile(r"train_data_step(\d+)")
_PRIME_STEP: Final = re.compile(r"step_(\d+)")


def generic(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """Our own schema: one training sequence per line or row."""
    optional = {"rank", "group_id", "weight_version", *FLOAT_LISTS}
    tags = _pairs(value.get("tags"))
    yield training(
        step=_needed(value, "step"),
        sample_id=_or(value.get("sample_id"), place.sample_id),
        token_ids=_needed(value, "token_ids"),
        mask=value.get("mask"),
        reward=value.get("reward"),
        time=value.get("time"),
        tags=tags,
        **{name: value[name] for name in optional if value.get(name) is not None},
    )


def nemo_rl(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """A line of ``train_data_step<N>.jsonl``: a batch of one, hence lists of one element; padded to the longest of the
    step."""
    match = _NEMO_STEP.search(place.path.name)
    if match is None:
        raise BadRowError("the step is not in the file's name (train_data_step<N>.jsonl)")
    row = {name: _single(entry) for name, entry in value.items()}
    if "token_ids" not in row:
        raise BadRowError("no token_ids: written by a NeMo-RL version that does not log tokens")
    length = row.get("input_lengths", len(row["token_ids"]))
    mask = _cut(row.get("token_loss_mask"), length)
    if mask is not None and row.get("sample_loss_mask") == 0:
        mask = [0] * len(mask)
    yield training(
        step=int(match[1]),
        sample_id=place.sample_id,
        token_ids=_cut(row["token_ids"], length),
        mask=mask,
        rollout_logprobs=_cut(row.get("generation_logprobs"), length),
        trainer_logprobs=_cut(row.get("prev_logprobs"), length),
        advantages=_cut(row.get("advantages"), length),
        # With dynamic sampling ``rewards`` are of all samples, in an order of their own.
        reward=row.get("filtered_rewards", row.get("rewards")),
    )


def prime_rl(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """A line of ``token_exports/step_<N>/rank_<R>.jsonl``: one sequence without padding."""
    match = _PRIME_STEP.search(place.path.parent.name)
    step = _or(value.get("export_step"), _or(value.get("step"), int(match[1]) if match else None))
    rewards = value.get("rewards")
    environment = value.get("env_name")
    yield training(
        step=step,
        sample_id=_or(value.get("sample_id"), f"{step}:{place.sample_id}"),
        token_ids=_needed(value, "token_ids"),
        mask=_prime_mask(value),
        rollout_logprobs=value.get("inference_logprobs"),
        trainer_logprobs=value.get("trainer_logprobs"),
        entropy=value.get("entropy"),
        advantages=value.get("advantages"),
        reward=_sequence_reward(rewards, value["loss_mask"]),
        rank=value.get("rank"),
        tags=None if not environment else [("environment", str(environment))],
    )


def prime_unstable(path: Path) -> str | None:
    """Why a file of ``token_exports/step_<N>`` must not be taken yet: prime-rl marks steps that every rank has
    written."""
    return None if (path.parent / "STABLE").exists() else "prime-rl has not marked its step STABLE"


def _prime_mask(value: Mapping[str, Any]) -> list[bool]:
    """Trained tokens that the policy sampled. Tokens of a cross-entropy loss are someone else's: they have no sampling
    log-prob.

    A weight stream that is absent, or null throughout, has its default: reinforcement learning on all tokens of the
    mask.
    """
    mask = _needed(value, "loss_mask")
    streams = [value.get(name) for name in ("rl_weights", "ref_kl_weights")]
    given = [stream for stream in streams if isinstance(stream, list) and any(w is not None for w in stream)]
    if streams[0] not in given:
        return list(mask)
    return [bool(flag) and any(weights) for flag, *weights in zip(mask, *given, strict=True)]


def open_instruct(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """A line of ``<run>_rollouts_<shard>.jsonl``: the sampled side only, the trainer's log-probs are not in it."""
    del place
    if "response_tokens" not in value:
        raise BadRowError("no response_tokens: not a line of --rollouts_save_path (traces_*.jsonl hold no log-probs)")
    step, sample = _needed(value, "step"), _needed(value, "sample_idx")
    dataset = value.get("dataset")
    yield training(
        step=step,
        sample_id=f"{step}:{sample}",
        group_id=f"{step}:{value['prompt_idx']}" if "prompt_idx" in value else None,
        token_ids=value["response_tokens"],
        rollout_logprobs=value.get("logprobs"),
        advantages=value.get("advantage"),
        reward=value.get("reward"),
        tags=None if dataset is None else [("dataset", str(dataset))],
    )


def slime(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """A sample of a slime or miles dump, as `torch_files.samples` takes it apart: ``kind`` "rollout" or "training"."""
    length = value["response_length"]
    tokens = integers("tokens", value["tokens"])[-length:] if length else []
    index = value.get("index")
    name = place.sample_id if index is None else str(index)
    mask = value.get("loss_mask")
    if mask is None:
        mask = [1] * len(tokens)
    if value["kind"] == "rollout":
        yield _slime_rollout(value, name, tokens, mask)
    else:
        yield training(
            step=value["rollout_id"],
            sample_id=name,
            token_ids=tokens,
            mask=mask,
            rollout_logprobs=value.get("rollout_log_probs"),
            trainer_logprobs=value.get("log_probs"),
            advantages=value.get("advantages"),
            reward=value.get("reward"),
            rank=value.get("rank"),
        )


def _slime_rollout(value: Mapping[str, Any], name: str, tokens: list[int], mask: Sequence[int]) -> Row:
    """The tokens under the mask: a tool's answer was not sampled."""
    logprobs = value.get("rollout_log_probs")
    if len(mask) != len(tokens) or (logprobs is not None and len(logprobs) != len(tokens)):
        raise BadRowError(f"loss_mask and rollout_log_probs do not have the {len(tokens)} values of the response")
    kept = [place for place, flag in enumerate(mask) if flag]
    versions = set(value.get("weight_versions") or ())
    group = value.get("group_index")
    return rollout(
        sample_id=name,
        token_ids=[tokens[place] for place in kept],
        logprobs=None if logprobs is None else [logprobs[place] for place in kept],
        version=str(versions.pop()) if len(versions) == 1 else None,  # of several, it is unknown which token had which
        group_id=None if group is None else str(group),
    )


def _needed(value: Mapping[str, Any], name: str) -> Any:
    if value.get(name) is None:
        raise BadRowError(f"no {name}")
    return value[name]


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _single(entry: Any) -> Any:
    return entry[0] if isinstance(entry, list) and len(entry) == 1 else entry


def _cut(values: Any, length: Any) -> Any:
    return values[:length] if isinstance(values, list) and isinstance(length, int) else values


def _sequence_reward(rewards: Any, mask: Any) -> Any:
    """A reward is written once per token; it is the sequence's when all tokens under the mask agree."""
    if not isinstance(rewards, list):
        return rewards
    values = {reward for reward, flag in zip(rewards, mask, strict=False) if flag}
    return values.pop() if len(values) == 1 else None


def _pairs(tags: Any) -> list[tuple[str, str]] | None:
    if tags is None:
        return None
    try:
        pairs = tags.items() if isinstance(tags, Mapping) else tags
        return [(str(key), str(value)) for key, value in pairs]
    except (TypeError, ValueError) as error:
        raise BadRowError(f"tags: an object expected, got {tags!r}") from error
