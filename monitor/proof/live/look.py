"""One look: the engine scores a few of its newest sequences again, and the gap to what it said when it sampled them.

The engine, its weights and its settings are the same; only its state is not used. What is left between the two is
rounding, unless that state went bad. A policy that moved on is in neither of the two.

Which sequences of a run the probe may score again, and whether prompt log-probs are comparable with what the engine
reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from pydantic import Field

from logprobe.collectors.errors import EngineError
from logprobe.collectors.versions import Mark, MarkFile
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.engine import Engine, Model
from logprobe.monitor.proof.paired import Gap, gap
from logprobe.monitor.proof.sample import Floats, sampling_of, temperature_of
from logprobe.monitor.queries import Source
from logprobe.monitor.settings_file import Settings

# Why there is no gap. Identifiers of health records, each with "probe_" before it.
Reason = Literal["no_version", "no_sequence", "incomparable", "budget", "busy", "engine", "discarded", "stopped"]
_LOOKED_AT: Final = 4  # times as many as wanted: some are too long, or not comparable
_MASKS: Final = ("logit_bias", "allowed_token_ids", "bad_words", "structured_outputs", "watermarking")
SHARE: Final = 0.001
SEQUENCES: Final = 4
RUNNING: Final = 32


class ProbeSettings(Settings):
    """One engine that is probed."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/[^\s]*)?$")]  # of `vllm serve`, without /v1
    runs: str = "*"  # a pattern of run names, as of files; the newest run that matches is probed
    replica: str | None = None  # required when the run has several engines
    every: Annotated[float, Field(ge=1, le=86400)] = 60.0  # seconds between two looks
    share: Annotated[float, Field(gt=0, le=1)] = SHARE  # of the run's sampled tokens that may be scored again
    sequences: Annotated[int, Field(ge=1, le=256)] = SEQUENCES  # per look, at most
    running: Annotated[int, Field(ge=0)] = RUNNING  # with more requests in the engine it counts as busy
    key_env: str | None = None  # environment variable with the engine's API key

    def wants(self, run: str) -> bool:
        """Whether the run is to be probed."""
        return fnmatchcase(run, self.runs)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found.

    Attributes:
        run: which run.
        version: weights that sampled and scored; None: unknown.
        gap: from what the engine said to what it says now; None: see `reason`.
        cached: the same for sequences with prompt tokens from the prefix cache; None: there were none.
        uncached: the same for the others.
        sequences: that were scored again.
        scored: tokens that the engine computed for it.
        reason: why there is no gap; None: there is one.
        why: the same in words.
        began: when the first of the scored sequences had been finished.
        newest: when the last of them had.
        ended: when the engine had scored the last.
    """

    run: str
    version: str | None
    gap: Gap | None = None
    cached: Gap | None = None
    uncached: Gap | None = None
    sequences: int = 0
    scored: int = 0
    reason: Reason | None = None
    why: str = ""
    began: datetime | None = None
    newest: datetime | None = None
    ended: datetime | None = None

    def without_gap(self, reason: Reason, why: str) -> Look:
        """The same without a result."""
        return replace(self, gap=None, cached=None, uncached=None, reason=reason, why=why)

    def document(self) -> dict[str, object]:
        """JSON-ready form: what ``logprobe probe --json`` prints."""
        parts = (("gap", self.gap), ("cached", self.cached), ("uncached", self.uncached))
        return {
            "run": self.run,
            "version": self.version,
            **{name: None if part is None else part.document() for name, part in parts},
            "sequences": self.sequences,
            "scored_tokens": self.scored,
            "reason": self.reason,
            "why": self.why or None,
        }


_Scored: TypeAlias = "tuple[Candidate, Floats]"
_MOST_MARKS: Final = 4096
SETTLE: Final = timedelta(seconds=5)  # what was recorded of a weight update has reached the store by then


class Marks:
    """Weight versions of a run as they are marked, read from the file that engines read: nothing has to be ingested
    first."""

    def __init__(self, home: Home, run: str) -> None:
        self._file = MarkFile(home.path, run)
        self._marks: list[Mark] = []

    def newest(self, replica: str | None, until: float = math.inf) -> Mark | None:
        """The newest mark before `until` that holds for an engine; None: there is none. Raises `OSError`."""
        self._marks += self._file.read_new()
        ours = [m for m in self._marks if m.adapter is None and m.replica in (None, replica) and m.applied_at < until]
        self._marks = self._marks[-_MOST_MARKS:]
        return max(ours, key=lambda mark: mark.applied_at, default=None)


def look(
    source: Source,
    home: Home,
    run: str,
    engine: Engine,
    settings: ProbeSettings,
    *,
    after: datetime | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Look:
    """Scores the newest sequences of a run again.

    Args:
        source: the store.
        home: of the run.
        run: which run.
        engine: that sampled them.
        settings: limits.
        after: when the newest sequence was finished that an earlier look scored.
        stopping: whether to stop in the middle.

    Raises:
        QueryError: the store refused.
        OSError: marks cannot be read.
    """
    marks = Marks(home, run)
    before = marks.newest(settings.replica)
    if before is None:
        return Look(run, None).without_gap(
            "no_version",
            "the engine's weight version is unknown: call logprobe.collectors.weights.mark(version), or name the "
            "engine's replica",
        )
    chosen = _chosen(source, run, before.version, settings, after)
    if isinstance(chosen, Look):
        return chosen
    result, scores = _scored(Look(run, before.version), engine, chosen, settings, stopping)
    if marks.newest(settings.replica) != before:
        return result.without_gap(
            "discarded", "the weights changed while sequences were scored; the result is discarded"
        )
    return _measured(result, scores)


def confirmed(result: Look, source: Source, home: Home, replica: str | None) -> Look:
    """The look, or why it cannot be used: what was recorded since says that the weights changed meanwhile.

    Call it `SETTLE` later: a load is noted by the engine and a mark made by the trainer, both in their own time.

    Raises:
        QueryError: the store refused.
        OSError: marks cannot be read.
    """
    if result.gap is None or result.began is None or result.ended is None:
        return result
    times = {"since": result.began.isoformat(), "until": result.ended.isoformat()}
    changes = queries.probe_changes(source, run=result.run, replica=replica, **times)["changes"][0].as_py()
    newest = Marks(home, result.run).newest(replica, until=result.ended.timestamp())
    if not changes and newest is not None and newest.applied_at <= result.began.timestamp():
        return result
    return result.without_gap("discarded", "the weights changed between sampling and scoring; the result is discarded")


def _chosen(
    source: Source, run: str, version: str, settings: ProbeSettings, after: datetime | None
) -> list[Candidate] | Look:
    """Sequences within the budget, the newest first; or why there are none."""
    nothing = Look(run, version)
    newest = candidates(source, run, version, replica=settings.replica, after=after, most=settings.sequences)
    if not newest:
        why = f"no new sequence of weight version {version} alone has a recorded prompt (LOGPROBE_VLLM=prompts=…)"
        return nothing.without_gap("no_sequence", why)
    replicas = {candidate.replica for candidate in newest}
    if len(replicas) > 1:
        names = ", ".join(sorted(map(str, replicas)))
        return nothing.without_gap("incomparable", f"the run has engines {names}: name the replica behind the URL")
    usable = [candidate for candidate in newest if candidate.why_not is None]
    if not usable:
        return nothing.without_gap("incomparable", newest[0].why_not or "")
    row = queries.probe_budget(source, run=run).to_pylist()[0]
    return _affordable(usable, settings, row["sampled"], row["scored"]) or nothing.without_gap(
        "budget",
        f"{row['sampled']} tokens were sampled and {row['scored']} scored again: the next sequence needs "
        f"{min(candidate.tokens for candidate in usable)} more than a share of {settings.share:g} allows",
    )


def _affordable(usable: Sequence[Candidate], settings: ProbeSettings, sampled: int, scored: int) -> list[Candidate]:
    """The newest sequences that keep the share.

    The token that the engine samples after each is part of the price.
    """
    left = settings.share * sampled - scored
    chosen: list[Candidate] = []
    for candidate in usable:
        if candidate.tokens + 1 <= left and len(chosen) < settings.sequences:
            chosen.append(candidate)
            left -= candidate.tokens + 1
    return chosen


def _scored(
    result: Look,
    engine: Engine,
    chosen: Sequence[Candidate],
    settings: ProbeSettings,
    stopping: Callable[[], bool],
) -> tuple[Look, list[_Scored]]:
    """Scores one after the other, and looks before each whether the engine has time."""
    scores: list[_Scored] = []
    try:
        model = engine.model()
        fitting = _fitting(model, chosen)
        if not fitting:
            return result.without_gap("incomparable", "the sequences are as long as max_model_len"), scores
        for candidate in fitting:
            if stopping():
                return result.without_gap("stopped", "the service stops"), scores
            load = engine.load()
            if load.waiting or load.running > settings.running:
                busy = f"the engine is busy: {load.running} requests run and {load.waiting} wait"
                return (result if scores else result.without_gap("busy", busy)), scores
            result = replace(result, scored=result.scored + candidate.tokens + 1)
            scores.append((candidate, engine.score(model, candidate.prompt_ids, candidate.response_ids)))
            result = replace(result, sequences=len(scores), ended=datetime.now(UTC))
    except EngineError as error:
        return result.without_gap("engine", str(error)), scores
    return result, scores


def _fitting(model: Model, chosen: Sequence[Candidate]) -> list[Candidate]:
    """Those that leave room for the token which the engine has to sample."""
    return [candidate for candidate in chosen if model.longest is None or candidate.tokens < model.longest]


def _measured(result: Look, scores: Sequence[_Scored]) -> Look:
    if result.reason is not None or not scores:
        return result

    def between(keep: Callable[[Candidate], bool]) -> Gap | None:
        pairs = [(candidate.rollout, again) for candidate, again in scores if keep(candidate)]
        return gap("r", tuple(r for r, _ in pairs), "r_again", tuple(again for _, again in pairs))

    whole = between(lambda _: True)
    if whole is None or not whole.tokens:
        return result.without_gap("incomparable", "no token has a log-prob on both sides")
    return replace(
        result,
        gap=whole,
        cached=between(lambda candidate: candidate.cached is True),
        uncached=between(lambda candidate: candidate.cached is False),
        began=min(candidate.time for candidate, _ in scores),
        newest=max(candidate.time for candidate, _ in scores),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A finished sequence. `why_not`: what makes its r incomparable with prompt log-probs; None: nothing."""

    time: datetime
    replica: str | None
    cached: bool | None
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    rollout: Floats
    why_not: str | None

    @property
    def tokens(self) -> int:
        """What scoring it again costs."""
        return len(self.prompt_ids) + len(self.response_ids)


def candidates(
    source: Source, run: str, version: str, *, replica: str | None, after: datetime | None, most: int
) -> list[Candidate]:
    """The newest sequences of one weight version with a recorded prompt. Raises `QueryError`."""
    since = None if after is None else after.isoformat()
    rows = queries.probe_sequences(
        source, run=run, version=version, replica=replica, after=since, most=_LOOKED_AT * most
    ).to_pylist()
    return [_candidate(row) for row in rows]


def _candidate(row: Mapping[str, Any]) -> Candidate:
    cached = row["cached_prefix_tokens"]
    return Candidate(
        time=row["time"],
        replica=row["replica"],
        cached=None if cached is None else cached > 0,
        prompt_ids=tuple(row["prompt_ids"]),
        response_ids=tuple(row["response_ids"]),
        rollout=np.array(row["logprobs"] or [np.nan] * len(row["response_ids"]), np.float64),
        why_not=why_not(row["logprobs_mode"], row["sampling"]),
    )


def why_not(mode: str | None, sampling: str | None) -> str | None:
    """What makes r incomparable with prompt log-probs, which are at temperature 1 and not truncated; None: nothing.

    >>> why_not("raw_logprobs", '{"temperature": 0.7}'), why_not("processed_logprobs", '{"temperature": 1.0}')
    (None, None)
    >>> why_not("processed_logprobs", '{"temperature": 0.7}')
    'log-probs are processed at temperature 0.7, and prompt log-probs are not'
    """
    if mode == "raw_logprobs":
        return None
    if mode != "processed_logprobs":
        return f"logprobs_mode is {mode or 'not recorded'}, which prompt log-probs cannot be compared with"
    if sampling is None:
        return "the sampling params were not recorded"
    document = json.loads(sampling)
    temperature = temperature_of(document.get("temperature"), "sampling")
    if temperature != 1:
        return f"log-probs are processed at temperature {temperature:g}, and prompt log-probs are not"
    changed = [*sampling_of(document, "sampling"), *(name for name in _MASKS if document.get(name))]
    return f"log-probs are processed with {', '.join(changed)}, and prompt log-probs are not" if changed else None
