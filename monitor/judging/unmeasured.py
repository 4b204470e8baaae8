"""List what could not be looked at: what it is, why, and how to make it measurable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from logprobe.monitor.judging.document import NotMeasuredDocument
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import Finding

ENOUGH: Final = 1000  # tokens: standard errors of a mean ratio are then a few per cent of the log-ratios' spread
_SOME: Final = 200  # tokens: with fewer no rule judges them


def not_measured(frame: Frame, findings: Sequence[Finding] = ()) -> tuple[NotMeasuredDocument, ...]:
    """Return everything that is missing from the frame, or hidden behind a finding."""
    hidden = (
        _item("the inference path and the objective", f"{finding.cause} hides them", "mend it, then look again")
        for finding in findings
        if finding.hides
    )
    return (*_missing(frame), *hidden)


def _missing(frame: Frame) -> Iterator[NotMeasuredDocument]:
    if not len(frame.series):
        yield _item(
            "the mismatch",
            "the trainer recorded no sequence in these steps",
            "call Recorder.training with token ids and trainer log-probs at every step",
        )
        return
    yield from _missing_sides(frame)
    yield from _missing_settings(frame)
    yield from _missing_versions(frame)
    yield from _missing_tokens(frame)


def _missing_sides(frame: Frame) -> Iterator[NotMeasuredDocument]:
    n = frame.gap.n
    if not n:
        yield _item(
            "the mismatch",
            "no sequence has both log-probs",
            "record rollout log-probs: let the vLLM plugin run in the engine (LOGPROBE_HOME, LOGPROBE_RUN), or pass "
            "rollout_logprobs to "
            "Recorder.training",
        )
    elif n < ENOUGH:
        yield _item(
            "small effects",
            f"only {n} tokens could be compared",
            "look again after more steps, or widen --steps",
        )
    if not frame.joins.seen_by_engine:
        yield _item(
            "prefix cache, replicas, requests in flight, r at its source",
            "no record of the engine was joined",
            "set LOGPROBE_HOME and LOGPROBE_RUN for the engine and record the same sample ids on both sides",
        )


def _missing_settings(frame: Frame) -> Iterator[NotMeasuredDocument]:
    if not frame.setup.engines:
        yield _item(
            "the engine's configuration",
            "no engine recorded one",
            "let the vLLM plugin run in the engine (LOGPROBE_HOME, LOGPROBE_RUN)",
        )
    if frame.setup.samplings is None:
        yield _item(
            "sampling params",
            "no engine recorded any",
            "let the vLLM plugin run in the engine (LOGPROBE_HOME, LOGPROBE_RUN)",
        )
    if not frame.setup.trainer:
        yield _item(
            "the trainer's temperature and dtype",
            "the trainer recorded no configuration",
            'call Recorder.config({"temperature": …, "dtype": …}, kind="trainer_config")',
        )


def _missing_versions(frame: Frame) -> Iterator[NotMeasuredDocument]:
    known, n = frame.strata.where(np.isfinite(frame.strata.lag)).n, frame.strata.n
    if frame.gap.n and known < n:
        yield _item(
            "staleness",
            f"the weight version is unknown for {1 - known / n:.0%} of the tokens or for the trainer",
            "call logprobe.collectors.weights.mark(version) after each weight update, and pass weight_version to "
            "Recorder.training",
        )


def _missing_tokens(frame: Frame) -> Iterator[NotMeasuredDocument]:
    tokens = frame.tokens
    if frame.gap.n and (tokens is None or len(tokens) < min(_SOME, frame.gap.n)):
        yield _item(
            "temperature implied, exact zeros, dtype grid, ends of sequences, repeated contexts, tokens around updates",
            "raw tokens of these steps are not kept",
            "keep raw tokens (retention budget, Recorder without edge reduction), or look at newer steps",
        )
    elif tokens is not None and len(tokens) and np.isnan(tokens.entropy).all():
        yield _item(
            "what else is behind a wrong temperature, precisely",
            "the trainer recorded no entropy",
            "pass entropy to Recorder.training",
        )


def _item(what: str, why: str, how: str) -> NotMeasuredDocument:
    return {"what": what, "why": why, "how": how}
