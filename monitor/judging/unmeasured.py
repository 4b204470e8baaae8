"""List missing inputs, each with the reason and a way to measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from logprobe.monitor.judging.document import NotMeasuredDocument
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import Finding
from logprobe.monitor.judging.thresholds import number

ENOUGH: Final = 1000  # tokens: standard errors of a mean ratio are then a few per cent of the log-ratios' spread
_PLUGIN: Final = "let the vLLM plugin run in the engine (LOGPROBE_HOME, LOGPROBE_RUN)"


def not_measured(frame: Frame, findings: Sequence[Finding] = ()) -> tuple[NotMeasuredDocument, ...]:
    """Return all inputs that are missing from the frame or hidden by a finding."""
    rows = _MISSING if len(frame.series) else _NOTHING
    missing = [_item(what, reason, how) for what, why, how in rows if (reason := why(frame))]
    hidden = [
        _item("the inference path and the objective", f"{finding.cause} hides them", "mend it, then look again")
        for finding in findings
        if finding.hides
    ]
    return (*missing, *hidden)


def _item(what: str, why: str, how: str) -> NotMeasuredDocument:
    return {"what": what, "why": why, "how": how}


def _versions(frame: Frame) -> str:
    known, n = frame.strata.where(np.isfinite(frame.strata.lag)).n, frame.strata.n
    unknown = f"the weight version is unknown for {1 - known / max(n, 1):.0%} of the tokens or for the trainer"
    return unknown if frame.gap.n and known < n else ""


def _no_tokens(frame: Frame) -> bool:
    return bool(frame.gap.n) and (frame.tokens is None or len(frame.tokens) < min(number("fewest"), frame.gap.n))


def _no_entropy(frame: Frame) -> bool:
    tokens = frame.tokens
    return not _no_tokens(frame) and tokens is not None and len(tokens) > 0 and bool(np.isnan(tokens.entropy).all())


# What is missing, why (empty if it is not), and how to make it measurable.
_Row = tuple[str, Callable[[Frame], str], str]
_NOTHING: Final[tuple[_Row, ...]] = (
    (
        "the mismatch",
        lambda _: "the trainer recorded no sequence in these steps",
        "call Recorder.training with token ids and trainer log-probs at every step",
    ),
)
_MISSING: Final[tuple[_Row, ...]] = (
    (
        "the mismatch",
        lambda frame: "" if frame.gap.n else "no sequence has both log-probs",
        f"record rollout log-probs: {_PLUGIN}, or pass rollout_logprobs to Recorder.training",
    ),
    (
        "small effects",
        lambda frame: f"only {frame.gap.n} tokens could be compared" if 0 < frame.gap.n < ENOUGH else "",
        "look again after more steps, or widen --steps",
    ),
    (
        "prefix cache, replicas, requests in flight, r at its source",
        lambda frame: "" if frame.joins.seen_by_engine else "no record of the engine was joined",
        "set LOGPROBE_HOME and LOGPROBE_RUN for the engine and record the same sample ids on both sides",
    ),
    ("the engine's configuration", lambda frame: "" if frame.setup.engines else "no engine recorded one", _PLUGIN),
    ("sampling params", lambda frame: "no engine recorded any" if frame.setup.samplings is None else "", _PLUGIN),
    (
        "the trainer's temperature and dtype",
        lambda frame: "" if frame.setup.trainer else "the trainer recorded no configuration",
        'call Recorder.config({"temperature": …, "dtype": …}, kind="trainer_config")',
    ),
    (
        "staleness",
        _versions,
        "call logprobe.collectors.weights.mark(version) after each update; pass weight_version to Recorder.training",
    ),
    (
        "temperature implied, exact zeros, dtype grid, ends of sequences, repeated contexts, tokens around updates",
        lambda frame: "raw tokens of these steps are not kept" if _no_tokens(frame) else "",
        "keep raw tokens (retention budget, Recorder without edge reduction), or look at newer steps",
    ),
    (
        "equal answers, repeated tokens, other token ids at the trainer",
        lambda frame: "all tokens have one id" if frame.tokens is not None and frame.tokens.nameless else "",
        "pass the ids of the sampled tokens as token_ids",
    ),
    (
        "which part of a growth is other tokens, by their entropy",
        lambda frame: "the trainer recorded no entropy" if _no_entropy(frame) else "",
        "pass entropy to Recorder.training",
    ),
)
