"""Sample of a recorded run: sequences with a recorded prompt, and the engine's recorded configuration."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.proof.sample import Floats, TokenSequence, sampling_of, sequence_of, spans_of, temperature_of
from logprobe.monitor.proof.setup import Setup
from logprobe.monitor.queries import Source

_LOOKED_AT: Final = 20  # times as many sequences as wanted: some lack a checkpoint
# Settings of the recorded summary that are arguments of an engine, under the same name.
_ARGUMENTS: Final = (
    "dtype",
    "logprobs_mode",
    "quantization",
    "max_model_len",
    "enforce_eager",
    "kv_cache_dtype",
    "enable_prefix_caching",
    "block_size",
    "enable_chunked_prefill",
    "max_num_batched_tokens",
    "max_num_seqs",
    "tensor_parallel_size",
    "enable_expert_parallel",
)
# Arguments that say where things are, or what is around the model; the checkpoint and the scorer have their own.
_AROUND: Final = re.compile(
    r"model|tokenizer\w*|served_model_name|revision|seed|\w*(host|port|path|dir|address|ip|backend_config|url)s?|"
    r"load_format|distributed_executor_backend|worker_cls|worker_extension_cls|generation_config|"
    r"(data_parallel|api|kv_transfer|kv_events|ec_|weight_transfer|profiler|logging|fault|otlp|watermark)\w*|"
    r"override_generation_config|\w*log_(stats|requests)\w*|enable_sleep_mode|"
    r"enable_lora|max_(cpu_)?loras|max_lora_rank|trust_remote_code|nnodes|node_rank|max_logprobs|gpu_memory_utilization"
)
# Those that no fresh engine takes: it forces tokens, with a processor of its own.
_NEVER: Final = ("speculative_config", "logits_processors")
# Of a request: what changes its distribution and is not applied again.
_NOT_APPLIED: Final = ("logit_bias", "bad_words", "allowed_token_ids", "structured_outputs", "watermarking")
_STEERING: Final = re.compile(
    r"VLLM_(?!.*(HOST|PORT|PATH|DIR|ROOT|PLUGINS|LOGGING))|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE"
)


def recorded_checkpoints(source: Source, run: str) -> dict[str, Path]:
    """Return the existing checkpoints by weight version, as ``recorder.weights(version, checkpoint=…)`` named them."""
    rows = queries.proof_checkpoints(source, run=run).to_pylist()
    checkpoints = {row["version"]: Path(row["checkpoint"]) for row in rows}
    return {version: path for version, path in checkpoints.items() if (path / "config.json").is_file()}


def recorded_sample(
    source: Source, run: str, setup: Setup, *, most: int, step: int | None = None
) -> tuple[tuple[TokenSequence, ...], Setup]:
    """Return the sequences of `run` that the available checkpoints can score, the newest first, and `setup` with the
    engine that sampled them.

    Args:
        source: the store.
        run: name of the run.
        setup: checkpoints by weight version, or one without a version, and what the user stated.
        most: maximum number of sequences.
        step: step of the sequences, or None for all steps.

    Raises:
        ConfigurationError: prompts or the checkpoint of a version are missing. The message names them.
    """
    rows = queries.proof_sequences(source, run=run, most=_LOOKED_AT * most, step=step).to_pylist()
    if not rows:
        return _imported(source, run, setup, most, step)
    recorded = [(row, _sequence(row, f"run {run!r}, sample {row['sample_id']!r}")) for row in rows]
    usable = [(row, sequence) for row, sequence in recorded if _has_checkpoints(sequence, setup.models)]
    if not usable:
        raise ConfigurationError(_wanted(run, [sequence for _, sequence in recorded], setup.models))
    config = Counter(row["engine_config_id"] for row, _ in usable).most_common(1)[0][0]
    chosen = [(row, sequence) for row, sequence in usable if row["engine_config_id"] == config][:most]
    documents = [json.loads(row["sampling"] or "{}") for row, _ in chosen]
    of_requests = tuple(name for name in _NOT_APPLIED if any(document.get(name) for document in documents))
    return tuple(sequence for _, sequence in chosen), _as_recorded(source, run, config, setup, of_requests)


def _imported(
    source: Source, run: str, setup: Setup, most: int, step: int | None
) -> tuple[tuple[TokenSequence, ...], Setup]:
    """Return the sample of the trainer's records alone, which contain the prompts. The step replaces an unnamed
    version.
    """
    rows = queries.proof_imported(source, run=run, most=_LOOKED_AT * most, step=step).to_pylist()
    if not rows:
        raise ConfigurationError(
            f"run {run!r} has no sequence {'' if step is None else f'of step {step} '}that can be scored again: "
            "prompts are recorded only where the engine's environment has "
            "LOGPROBE_RECORD=prompts=0.01 (a share), or imported where the file has all tokens with a mask, and raw "
            "tokens must still be "
            "kept; or pass --sample FILE"
        )
    sequences = [_of_trainer_alone(row, f"run {run!r}, sample {row['sample_id']!r}") for row in rows]
    usable = [sequence for sequence in sequences if _has_checkpoints(sequence, setup.models)]
    if not usable:
        raise ConfigurationError(_wanted(run, sequences, setup.models))
    unknown = setup.recorded_as({}, {}, {}, ("the engine's settings, which were not recorded",))
    return tuple(usable[:most]), unknown


def _of_trainer_alone(row: Mapping[str, Any], place: str) -> TokenSequence:
    """Return a sequence whose mask begins with the response. Tool output in the response has no log-prob."""
    tokens, mask = row["token_ids"], row["mask"]
    under = np.flatnonzero(mask)
    start, end = int(under[0]), int(under[-1]) + 1
    version = str(row["step"] if row["weight_version"] is None else row["weight_version"])
    return sequence_of(
        {
            "sample_id": row["sample_id"],
            "prompt_ids": tokens[:start],
            "response_ids": tokens[start:end],
            "rollout_logprobs": _under(mask, row["rollout_logprobs"], start, end),
            "trainer_logprobs": _under(mask, row["trainer_logprobs"], start, end),
            "rollout_version": version,
            "trainer_version": version,
        },
        place,
    )


def _under(mask: list[bool], values: list[float] | None, start: int, end: int) -> list[float | None] | None:
    """Return the log-probs of tokens ``start:end``, None for masked ones."""
    if values is None:
        return None
    return [value if flag else None for value, flag in zip(values[start:end], mask[start:end], strict=True)]


def _has_checkpoints(sequence: TokenSequence, versions: Collection[str]) -> bool:
    if sequence.rollout_version is None or sequence.trainer_version is None:
        return False
    return {sequence.rollout_version, sequence.trainer_version} <= set(versions)


def _wanted(run: str, sequences: list[TokenSequence], versions: Collection[str]) -> str:
    """Return the error text with the options to pass, according to the record."""
    stated = Counter((sequence.rollout_version, sequence.trainer_version) for sequence in sequences)
    words = ", ".join(
        f"{count} sampled by {sampled or 'an unknown version'} and trained on by {trained or 'an unknown version'}"
        for (sampled, trained), count in stated.most_common(3)
    )
    given = "a --model without a version" if set(versions) == {""} else f"--model for {', '.join(sorted(versions))}"
    return f"run {run!r}: {words}; {given} was passed; pass --model VERSION=PATH for the versions of one of these"


def _sequence(row: Mapping[str, Any], place: str) -> TokenSequence:
    document = json.loads(row["sampling"] or "{}")
    spans = spans_of(row["spans"])
    versions = [span["version"] for span in row["spans"] or []]
    return TokenSequence(
        sample_id=row["sample_id"],
        prompt_ids=tuple(row["prompt_ids"]),
        response_ids=tuple(row["response_ids"]),
        rollout=_floats(row["engine_logprobs"]),
        trainer=_of_trainer(row),
        temperature=temperature_of(document.get("temperature"), place),
        sampling=sampling_of(document, place),
        rollout_version=versions[-1] if versions else None,
        trainer_version=row["trainer_version"],
        spans=spans if len(spans) > 1 else (),
        replica=row["replica"],
    )


def _of_trainer(row: Mapping[str, Any]) -> Floats | None:
    """Return t of the tokens that the engine sampled."""
    values = _floats(row["trainer_logprobs"])
    if values is None:
        return None
    if row["alignment"] == "masked" and row["mask"] is not None:
        values = values[np.array(row["mask"], np.bool_)]
    return values if len(values) == len(row["response_ids"]) else None


def _floats(values: Any) -> Floats | None:
    return None if values is None else np.array([np.nan if x is None else x for x in values], np.float64)


def _as_recorded(
    source: Source, run: str, fingerprint: str | None, setup: Setup, of_requests: tuple[str, ...]
) -> Setup:
    """Return the setup with the engine of a configuration. `of_requests`: what their params had and is not repeated."""
    rows = queries.config_documents(source, run=run, kind="engine_config").to_pylist()
    document = next((json.loads(row["document"]) for row in rows if row["fingerprint"] == fingerprint), None)
    if document is None:
        raise ConfigurationError(
            f"run {run!r}: the engine's configuration was not recorded; pass --sample and --engine-args"
        )
    summary, given = document["summary"], document.get("arguments")
    overrides, never = _arguments(given or {})
    overrides |= {name: summary[name] for name in _ARGUMENTS if summary.get(name) is not None}
    if summary.get("head_dtype") not in (None, summary.get("dtype")):
        overrides["hf_overrides"] = {**overrides.get("hf_overrides", {}), "head_dtype": summary["head_dtype"]}
    steering = {name: str(value) for name, value in document.get("environment", {}).items() if _STEERING.match(name)}
    unknown = ("the engine's arguments, which were not recorded",) if given is None else ()
    version = (document.get("versions") or {}).get("vllm")
    settings = {**summary, **({} if version is None else {"vllm": version})}
    return setup.recorded_as(overrides, settings, steering, (*of_requests, *never, *unknown))


def _arguments(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the repeatable recorded arguments and the names of the others, which are recorded only as text."""
    ours = {name: value for name, value in given.items() if value is not None and not _AROUND.fullmatch(name)}
    lost = [name for name, value in ours.items() if name.endswith("_config") and isinstance(value, str)]
    never = tuple(name for name in ours if name in _NEVER or name in lost)
    return {name: value for name, value in ours.items() if name not in never}, never
