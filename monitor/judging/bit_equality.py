"""Certificate of bit equality between engine and trainer ("true on-policy"), and the first token that breaks it.

A run claims equality by a setting, or by steps in which all compared tokens were equal. A token is compared if r was
recorded at the engine and t at the trainer, and if the trainer's own weights sampled it. Equal bits alone are no proof:
one array may have been passed twice. They count if a setting makes them possible, or if tokens of older weights differ.

Equality is that of float32 values, as recorded. −0.0 equals 0.0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor import queries
from logprobe.monitor.analysis.token_view import Tokens, pair_tokens, read_tokens
from logprobe.monitor.judging.setup import claim_of, from_documents, parsed
from logprobe.monitor.metrics.lag import Versions
from logprobe.monitor.queries import Source

Verdict = Literal["zero", "broken", "different", "not measured"]
# A step of a live run is looked at once nothing came for it for so long: its records come in several segments.
QUIET: Final = timedelta(seconds=2)
SEEN_STEPS: Final = 50  # equal in a row: a claim without a setting, and the end of a break
CLAIMED_STEPS: Final = 2  # equal in a row, of a run with such a setting
COPIES: Final = 100  # equal tokens of older weights; a few are equal by chance, where the policy is certain
_CANDIDATES: Final = 16  # sequences of a step among which the first with a token of the trainer's own weights is sought
_COLUMNS: Final = ("step", "tokens", "compared", "differing", "unknown", "older", "older_differing")
_BELOW_BFLOAT16: Final = 0xFFFF  # bits of a float32 that a bfloat16 does not have
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Steps:
    """Counts of tokens by step [G], ascending: rows of ``bits_steps`` of one run."""

    step: Counts
    tokens: Counts
    compared: Counts
    differing: Counts
    unknown: Counts
    older: Counts
    older_differing: Counts

    @classmethod
    def of(cls, table: pa.Table) -> Steps:
        """Read the rows of one run."""
        return cls(*(table[name].to_numpy().astype(np.int64) for name in _COLUMNS))


@dataclass(frozen=True, slots=True)
class Certificate:
    """Verdict on the newest steps of a run.

    Attributes:
        verdict: zero, broken, different, or not measured.
        reason: explanation, as a fragment of a sentence.
        since_step: first step of the series with this verdict, or None if unknown.
        tokens: compared tokens of that series, or of the one that was broken.
    """

    verdict: Verdict
    reason: str
    since_step: int | None = None
    tokens: int = 0

    @property
    def words(self) -> str:
        """Verdict and reason."""
        return in_words(self.verdict, self.reason)


def in_words(verdict: str, reason: str) -> str:
    """Return the verdict with its reason, which begins with the word zero if that is the verdict."""
    return reason if verdict == "zero" else f"{verdict}: {reason}"


def judge(steps: Steps, claim: str | None, may_agree: Callable[[], bool]) -> Certificate:
    """Return the verdict.

    Args:
        steps: counts of all steps.
        claim: setting that claims equality, or None.
        may_agree: whether the recorded setup makes equal bits possible. Only asked if it matters.
    """
    if not len(steps.step):
        return Certificate("not measured", "no step has been trained on yet")
    # Where weights differ in age, an unknown version may be an older one.
    differing = steps.differing + (0 if steps.older.any() or steps.older_differing.any() else steps.unknown)
    equal = (differing == 0) & (steps.compared > 0)
    breaks = np.flatnonzero(differing > 0)
    runs = _Runs(steps, equal, np.append(breaks, len(steps.step)), claim, may_agree)
    tail = runs.before(len(breaks))
    far = np.flatnonzero(np.diff(breaks) > SEEN_STEPS) + 1  # others follow a break at once
    broken = next((at for at in (*far[::-1].tolist(), 0) if at < len(breaks) and runs.claims(at)), None)
    if broken is not None and len(tail) < SEEN_STEPS:
        return _broken(steps, differing, int(breaks[broken]), runs.before(broken))
    if len(tail) >= (SEEN_STEPS if claim is None else CLAIMED_STEPS):
        return runs.certified(tail)
    if len(breaks) and (not len(tail) or breaks[-1] > tail[-1]):
        return _different(steps, differing, breaks, equal)
    return Certificate("not measured", _too_few(steps, tail, claim))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Series of equal steps between differing ones. `ends`: places of the differing steps, and the end."""

    steps: Steps
    equal: NDArray[np.bool_]
    ends: Counts
    claim: str | None
    may_agree: Callable[[], bool]

    def before(self, at: int) -> Counts:
        """Return the places of the equal steps before the differing step of this number."""
        first = int(self.ends[at - 1]) + 1 if at else 0
        return first + np.flatnonzero(self.equal[first : int(self.ends[at])])

    def claims(self, at: int) -> bool:
        """Return whether the run claimed equality when its differing step of this number came."""
        if self.claim is not None and not at:
            return True
        rows = self.before(at)
        return len(rows) >= SEEN_STEPS and (self.claim is not None or self._proven(rows)) and not self.copied(rows)

    def _proven(self, rows: Counts) -> bool:
        """Return whether two computations made these equal steps."""
        return self._older(rows)[1] > 0 or self.may_agree()

    def copied(self, rows: Counts) -> bool:
        """Return whether tokens of older weights are equal, too, which two computations do not give."""
        older, differing = self._older(rows)
        return older >= COPIES and not differing

    def _older(self, rows: Counts) -> tuple[int, int]:
        within = slice(int(rows[0]), int(rows[-1]) + 1)
        return int(self.steps.older[within].sum()), int(self.steps.older_differing[within].sum())

    def certified(self, rows: Counts) -> Certificate:
        steps, since = self.steps, int(self.steps.step[rows[0]])
        if self.copied(rows):
            older = self._older(rows)[0]
            why = f"all log-probs are equal since step {since}, also those of {older:,} tokens of older weights: one array may be a copy of the other"
            return Certificate("not measured", why, since)
        if self.claim is None and not self._proven(rows):
            why = (
                f"all log-probs are equal since step {since}, and nothing recorded shows two computations: record the "
                "setting that makes them equal, and the engine's and the trainer's dtype"
            )
            return Certificate("not measured", why, since)
        within = slice(int(rows[0]), int(rows[-1]) + 1)
        n, expected, older = (int(column[within].sum()) for column in (steps.compared, steps.tokens, steps.older))
        left = [f"{older:,} of older weights"] if older else []
        left += [f"{expected - n - older:,} not recorded at both sides or broken"] if expected > n + older else []
        by = f"seen in {len(rows):,} steps" if self.claim is None else f"claimed by {self.claim}"
        words = f"zero since step {since}, {n:,} tokens ({by})"
        return Certificate("zero", words + (f"; not compared: {', '.join(left)}" if left else ""), since, n)


def _broken(steps: Steps, differing: Counts, at: int, before: Counts) -> Certificate:
    n, step = int(steps.compared[before].sum()), int(steps.step[at])
    words = f"{differing[at]:,} of {steps.tokens[at]:,} tokens of step {step} have two different log-probs"
    after = f", after {n:,} equal tokens since step {steps.step[before[0]]}" if n else ""
    return Certificate("broken", f"{words}{after}", step, n)


def _different(steps: Steps, differing: Counts, breaks: Counts, equal: NDArray[np.bool_]) -> Certificate:
    last = int(breaks[-1])
    before = np.flatnonzero(equal[:last])
    first = breaks[np.searchsorted(breaks, before[-1])] if len(before) else breaks[0]
    words = f"{differing[last]:,} of {steps.tokens[last]:,} tokens differ in step {steps.step[last]}"
    return Certificate(
        "different", f"{words}; normal unless both sides were set up to be equal", int(steps.step[first])
    )


def _too_few(steps: Steps, tail: Counts, claim: str | None) -> str:
    if len(tail):
        needed = SEEN_STEPS if claim is None else CLAIMED_STEPS
        return f"equal since step {steps.step[tail[0]]}, in {len(tail)} steps; {needed} are needed"
    if steps.older[-1]:
        return f"step {steps.step[-1]} has tokens of older weights only"
    return (
        f"no token of step {steps.step[-1]} has a log-prob recorded at the engine and one at the trainer: one array may "
        "have been passed twice"
    )


def candidates(source: Source, runs: Sequence[str]) -> set[str]:
    """Return the runs whose certificate may be zero or broken. This reads no step by itself. Raises `QueryError`."""
    return set(queries.bits_candidates(source, runs=list(runs), steps=SEEN_STEPS)["run"].to_pylist())


def read(source: Source, runs: Sequence[str], *, until: datetime | None = None) -> dict[str, Certificate]:
    """Return the certificate of each run. Raises `QueryError`.

    Args:
        source: store or its service.
        runs: names.
        until: time after which a computed step may still receive data, or None to judge all steps.
    """
    table = queries.bits_steps(source, runs=list(runs), until=None if until is None else until.isoformat())
    documents = {row["run"]: row["document"] for row in queries.bits_claims(source, runs=list(runs)).to_pylist()}
    names = table["run"].to_pylist()
    found = {}
    for run in runs:
        first = bisect_left(names, run)
        rows = Steps.of(table.slice(first, bisect_right(names, run) - first))
        claim = claim_of(parsed(documents[run])) if run in documents else None
        found[run] = judge(rows, claim, cache(partial(_may_agree, source, run)))
    return found


def complete_until(now: datetime, *, ended: bool) -> datetime | None:
    """Return the time after which a computed step of a run may still receive data, or None for an ended run."""
    return None if ended else now - QUIET


def _may_agree(source: Source, run: str) -> bool:
    return from_documents(queries.diagnosis_configs(source, run=run).to_pylist()).bits_may_agree


def explained(source: Source, run: str, certificate: Certificate) -> Certificate:
    """Return a certificate with what tokens say of it. Raises `QueryError`.

    A broken one gets its first differing token and the changes before it, and zero gets the dtype if it is coarse.
    """
    step, reason = certificate.since_step, certificate.reason
    if certificate.verdict == "zero" and _is_coarse(source, run):
        reason += "; all are bfloat16 numbers, so that smaller differences would not show"
    elif certificate.verdict == "broken" and step is not None:
        rows = queries.alert_changes(source, run=run, last=step).to_pylist()
        before = ", ".join(f"{row['what']} ({row['time']:%Y-%m-%d %H:%M:%S} UTC)" for row in rows)
        reason += f"; {first_difference(source, run, step)}; changed last before it: {before or 'nothing recorded'}"
    return replace(certificate, reason=reason)


def _is_coarse(source: Source, run: str) -> bool:
    """Return whether all log-probs of the newest sequence with raw tokens are bfloat16 numbers."""
    for row in queries.bits_newest(source, run=run).to_pylist():
        tokens = read_tokens(source, run, row["step"], segment=row["segment_id"], row=row["row"])
        if tokens is not None:
            sides = [tokens.sides[name].values_N[tokens.mask_N] for name in ("rollout", "trainer")]
            values = np.concatenate(sides).astype(np.float32)
            values = values[np.isfinite(values) & (values != 0)]
            return len(values) > 0 and not (values.view(np.uint32) & _BELOW_BFLOAT16).any()
    return False


def first_difference(source: Source, run: str, step: int) -> str:
    """Describe the first token of a step with two different log-probs, and what follows it. Raises `QueryError`."""
    rows = queries.bits_differing(source, run=run, step=step, count=_CANDIDATES).to_pylist()
    versions = Versions.of(queries.diagnosis_weights(source, runs=[run], after=[None]).to_pylist())
    for row in rows:
        tokens = read_tokens(source, run, step, segment=row["segment_id"], row=row["row"]) if row["raw_kept"] else None
        if tokens is not None and (found := _own_difference(tokens, row["trainer_version"], versions)) is not None:
            return _told(row, tokens, found)
    lost = next((row for row in rows if not row["raw_kept"]), None)
    if lost is None:  # frozen, or more candidates than are looked at
        return "the first token was not found"
    return f"{lost['differing']:,} of {lost['n']:,} tokens of {_sequence(lost)}{_others(lost)}; its tokens are not kept"


def _own_difference(tokens: Tokens, trainer: str | None, versions: Versions) -> int | None:
    """Return the position of the first differing token that no older weights sampled, or None."""
    names = pa.chunked_array([pa.array([*tokens.versions, None], pa.string())])
    lags = versions.lags(pa.chunked_array([pa.array([trainer] * len(names), pa.string())]), names)["versions"]
    differs = np.flatnonzero(np.nan_to_num(pair_tokens(tokens, "backend").d_N) != 0)
    own = differs[~(lags[tokens.version_N[differs]] > 0)]
    return int(own[0]) if len(own) else None


def _told(row: queries.BitsDiffering, tokens: Tokens, at: int) -> str:
    after = pair_tokens(tokens, "backend").d_N[at + 1 :]
    after = after[np.isfinite(after)]
    follow = f"{np.count_nonzero(after):,} of the {len(after):,} tokens after it differ, too"
    version = tokens.version_N[at]
    by = "an unknown weight version" if version < 0 else f"weight version {tokens.versions[version]}"
    r, t = (tokens.sides[name].values_N[at] for name in ("rollout", "trainer"))
    return (
        f"the first is token {at:,} of {_sequence(row)}, sampled by {by}: rollout {r:.9g}, trainer {t:.9g}; "
        f"{follow if len(after) else 'no compared token follows it'}{_others(row)}"
    )


def _sequence(row: queries.BitsDiffering) -> str:
    rank = "" if row["rank"] is None else f" of rank {row['rank']}"
    replica = "an unknown replica" if row["replica"] is None else f"replica {row['replica']}"
    return f"sequence {row['sample_id']}{rank} on {replica}"


def _others(row: queries.BitsDiffering) -> str:
    others, sequences = row["others"] - 1, row["sequences"] - 1
    return f"; {others:,} of {sequences:,} other sequences of the step differ, too" if sequences else ""
