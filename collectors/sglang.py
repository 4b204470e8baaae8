"""Adapter of SGLang: conversion of its answers to rollout records, and a plugin that records without code.

    answers = engine.generate(prompts, params, return_logprob=True)
    sglang.record(recorder, answers)            # recorder.rollout(…) of answers you hold

The plugin (entry point ``sglang.srt.plugins``) reads the batches that the tokenizer manager receives from the
scheduler. It requires ``LOGPROBE_HOME``, and requests with log-probs (``return_logprob``). A sample id is SGLang's
request id, ``meta_info["id"]`` of the answer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from logprobe.collectors.environment import wanted
from logprobe.collectors.integrations.imports import when_imported
from logprobe.collectors.integrations.wrapping import Process, version_of
from logprobe.collectors.recorder.recorder import Recorder

MODULE: Final = "sglang.srt.managers.tokenizer_manager"
_BEFORE_UPDATES: Final = "default"  # SGLang's name of weights without one

Spans = list[tuple[int, int, str | None]]


@dataclass(frozen=True)
class Finished:
    """Finished request of SGLang."""

    name: str
    token_ids: Sequence[int]
    logprobs: Sequence[float | None]
    spans: Spans | None  # weight versions, [start, end) in sampled tokens; None: unknown
    finish_reason: str | None
    prompt_length: int | None
    cached_tokens: int | None


def record(
    recorder: Recorder,
    answers: Any,
    *,
    sample_ids: Sequence[str] | None = None,
    prompt_ids: Sequence[str] | None = None,
    idle_updates: bool = False,
) -> bool:
    """Record answers of ``Engine.generate`` or ``/generate``.

    Args:
        recorder: recorder of the answers.
        answers: one answer or a list, each with ``meta_info``, requested with ``return_logprob``.
        sample_ids: name per answer, by default ``meta_info["id"]``.
        prompt_ids: name of the prompt per answer.
        idle_updates: true if weights are only loaded while no request runs, so that ``weight_version`` holds for all
            tokens of an answer. Unnecessary if SGLang reports ``weight_versions``, with spans.

    Returns:
        True if the answers were accepted. Otherwise False, counted in `Recorder.health` with the reason.
    """
    with recorder.guard("sglang.record"):
        listed = [answers] if isinstance(answers, Mapping) else list(answers)
        return _write(
            recorder,
            [_of_answer(answer["meta_info"], idle_updates=idle_updates) for answer in listed],
            sample_ids,
            prompt_ids,
        )
    return False


def _of_answer(meta: Mapping[str, Any], *, idle_updates: bool) -> Finished:
    pairs = [(entry[0], int(entry[1])) for entry in meta["output_token_logprobs"]]
    spans = _spans(meta.get("weight_versions"), len(pairs))
    if spans is None and idle_updates and meta.get("weight_version") is not None:
        spans = [(0, len(pairs), version_name(meta["weight_version"]))]
    return Finished(
        name=str(meta["id"]),
        token_ids=[token for _, token in pairs],
        logprobs=[logprob for logprob, _ in pairs],
        spans=spans,
        finish_reason=_reason(meta.get("finish_reason")),
        prompt_length=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"),
    )


def _spans(spans: Iterable[Any] | None, tokens: int) -> Spans | None:
    """Return spans of an answer's dictionaries, or of SGLang's own structs."""
    if spans is None:
        return None
    read = [
        span if isinstance(span, Mapping) else {key: getattr(span, key) for key in ("start", "end", "version")}
        for span in spans
    ]
    return [
        (int(s["start"]), min(int(s["end"]), tokens), version_name(s["version"]))
        for s in read
        if int(s["start"]) < tokens
    ]


def version_name(version: Any) -> str | None:
    """Return the version that SGLang reports, or None if these weights have no name.

    >>> version_name(3), version_name("default")
    ('3', None)
    """
    return None if version in (None, _BEFORE_UPDATES) else str(version)


def _reason(reason: Any) -> str | None:
    return reason.get("type") if isinstance(reason, Mapping) else None if reason is None else str(reason)


def _write(
    recorder: Recorder,
    finished: Sequence[Finished],
    names: Sequence[str] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> bool:
    return recorder.rollout(
        sample_ids=[sequence.name for sequence in finished] if names is None else list(names),
        token_ids=[list(sequence.token_ids) for sequence in finished],
        logprobs=[list(sequence.logprobs) for sequence in finished],
        weight_version=[sequence.spans for sequence in finished],
        finish_reasons=[sequence.finish_reason for sequence in finished],
        prompt_lengths=[sequence.prompt_length for sequence in finished],
        cached_prefix_tokens=[sequence.cached_tokens for sequence in finished],
        prompt_ids=prompt_ids,
    )


# --- The plugin ---


def plugin() -> None:
    """Install the plugin. SGLang calls this in each of its processes, and only the tokenizer manager records."""
    if wanted():
        when_imported(MODULE, _Watch().attach)


class _Watch:
    """Recorder of the batches that the tokenizer manager receives."""

    def __init__(self) -> None:
        self._process = Process("sglang", title=f"SGLang {version_of('sglang')}", component="sglang")

    def attach(self, module: ModuleType) -> None:
        """Wrap the manager's method, or leave it unchanged if it is unknown."""
        manager = module.TokenizerManager
        method = "_handle_batch_output"
        original = getattr(manager, method, None)
        awaits = original is None or inspect.iscoroutinefunction(original)
        problems = () if awaits else (f"TokenizerManager.{method} is not a coroutine",)
        if not self._process.knows(manager, {method: ("recv_obj",)}, *problems) or original is None:
            return

        @functools.wraps(original)
        async def watched(host: Any, recv_obj: Any) -> Any:
            states: list[tuple[int, Any]] = []
            with self._process.guard("batch"):  # SGLang forgets a request when it hands out the answer
                states = _ending(host, recv_obj)
            result = await original(host, recv_obj)
            with self._process.guard("batch"):
                self._record(states, recv_obj)
            return result

        manager._handle_batch_output = watched  # noqa: SLF001 - SGLang's hooks do the same, and cannot await

    def _record(self, states: Sequence[tuple[int, Any]], batch: Any) -> None:
        finished = [_of_batch(index, state, batch) for index, state in states]
        recorder = self._process.begin() if finished else None
        if recorder is not None:
            _write(recorder, finished)


def _ending(manager: Any, batch: Any) -> list[tuple[int, Any]]:
    """Return index and state of the requests that end in a batch and requested log-probs."""
    reasons = getattr(batch, "finished_reasons", None) or []
    if getattr(batch, "output_token_logprobs_val", None) is None:
        return []
    states = [
        (index, manager.rid_to_state.get(rid))
        for index, (rid, why) in enumerate(zip(batch.rids, reasons, strict=True))
        if why is not None
    ]
    return [
        (index, state) for index, state in states if state is not None and getattr(state.obj, "return_logprob", False)
    ]


def _of_batch(index: int, state: Any, batch: Any) -> Finished:
    """Return a finished request with the log-probs in its state."""
    tokens = [int(token) for token in state.output_token_logprobs_idx]
    versions = getattr(batch, "weight_versions", None)
    return Finished(
        name=str(batch.rids[index]),
        token_ids=tokens,
        logprobs=list(state.output_token_logprobs_val),
        spans=_spans(None if versions is None else versions[index], len(tokens)),
        finish_reason=_reason(batch.finished_reasons[index]),
        prompt_length=int(batch.prompt_tokens[index]),
        cached_tokens=int(batch.cached_tokens[index]),
    )
