"""Effect of discarding: comparison of sampled requests that were never trained with trained ones.

Asynchronous trainers drop answers that come too late, filters drop groups, and masks drop truncated answers. A request
counts as discarded once it has waited twice as long as any trained one has. Before that it may still be trained.

Late answers are long ones, so dropping them shortens what is trained. It is named if answers whose weights were too
old when they were done are dropped whatever their length: a filter on the length drops long ones whatever their age.
Requests of another purpose, such as an evaluation, may be late, too, and none is trained. Only requests of prompts of
which another answer was trained are known to be for training, so these alone tell what is dropped.

Dimensions: ``_S`` requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.document import DiscardedDocument, LateDocument, SidesDocument
from logprobe.monitor.judging.judgement import Confidence, Finding, digits
from logprobe.monitor.judging.measures import SIGNIFICANT, Floats, clustered, difference
from logprobe.monitor.judging.once import once
from logprobe.monitor.judging.thresholds import number

Bools = NDArray[np.bool_]

_PATIENCE: Final = 2.0  # times the longest wait of a trained request
_MISSING: Final = 0.1  # of the discarded: as many trained sequences without a rollout record may be among them
_KNOWN: Final = 0.95  # of the requests must have a value on both sides
_BINS: Final = 20  # of like length
_NORMAL: Final = 1.96


@dataclass(frozen=True, eq=False)
class Sampled:
    """Requests of the engines in the order in which they were done, as arrays [S].

    Attributes:
        time: time of completion in seconds.
        tokens: number of sampled tokens.
        prompt: code of the prompt.
        entropy: mean −r, NaN if unknown.
        reward: reward, NaN where no trainer recorded it.
        first: weight version that sampled its first token, NaN if unknown.
        last: weight version that sampled its last token, NaN if unknown.
        trained_at: time of its first training in seconds, NaN if never trained.
        until: time up to which training is recorded.
        missing: trained sequences that may belong to any of these requests.
    """

    time: Floats
    tokens: Floats
    prompt: NDArray[np.intp]
    entropy: Floats
    reward: Floats
    first: Floats
    last: Floats
    trained_at: Floats
    until: float
    missing: int

    @property
    def settled(self) -> Bools:
        """Mask of the requests that would be trained by now [S]."""
        longest = float(np.max(self.trained_at - self.time, initial=0.0, where=np.isfinite(self.trained_at)))
        settled: Bools = self.time <= self.until - _PATIENCE * longest
        return settled

    @property
    def training(self) -> Bools:
        """Mask of the requests of whose prompt another one was trained [S]."""
        trained = np.isfinite(self.trained_at)
        _, code = np.unique(self.prompt, return_inverse=True)
        training: Bools = np.bincount(code.ravel(), trained)[code.ravel()] > trained
        return training

    @property
    def late(self) -> Floats:
        """Versions that the weights of a request were behind when it was done [S], NaN if unknown."""
        return np.fmax.accumulate(self.last) - self.first if len(self.last) else self.last


@once
def discarding(sampled: Sampled) -> DiscardedDocument | None:
    """Compare discarded with trained requests, or return None if there are too few, or records are missing."""
    at = sampled.settled
    gone, prompt = ~np.isfinite(sampled.trained_at[at]), sampled.prompt[at]
    if min(gone.sum(), (~gone).sum()) < number("discarded") or sampled.missing > _MISSING * gone.sum():
        return None
    length = _sides(sampled.tokens[at], gone, prompt)
    entropy, reward = _sides(sampled.entropy[at], gone, prompt), _sides(sampled.reward[at], gone, prompt)
    sides = (("tokens", length), ("nats of entropy", entropy), ("reward", reward))
    told = "; ".join(
        f"{side['trained']:.3g} {name} trained, {_beside(side)}" for name, side in sides if side is not None
    )
    return {
        "requests": len(gone),
        "share": digits(float(gone.mean())),
        "length": length,
        "entropy": entropy,
        "reward": reward,
        "late": _late(sampled),
        "words": f"{gone.mean():.1%} of {len(gone):,} sampled requests have no training record; mean {told}",
    }


def late_answers(sampled: Sampled) -> list[Finding]:
    """Name late answers that are dropped, if that shortens what is trained."""
    found = discarding(sampled)
    if found is None or found["late"] is None:
        return []
    at = sampled.settled & sampled.training
    gone, prompt, tokens = ~np.isfinite(sampled.trained_at[at]), sampled.prompt[at], sampled.tokens[at]
    length = _sides(tokens, gone, prompt)
    if length is None or length["difference_interval"][0] <= 0 or _longer(tokens, gone, prompt) <= SIGNIFICANT:
        return []
    low, high = length["difference_interval"]
    shorter = length["sampled"] - length["trained"]
    evidence = {"share": found["share"], **found["late"], **length, "shorter": shorter, "low": low, "high": high}
    return [Finding("late_answers_dropped", Confidence.KNOWN, evidence=evidence)]


def _longer(tokens_S: Floats, gone_S: Bools, prompt_S: NDArray[np.intp]) -> float:
    """Return the excess length of discarded requests over trained ones, by ranks, in standard errors."""
    rank = _ranks(tokens_S)
    return difference(clustered(rank[gone_S], prompt_S[gone_S]), clustered(rank[~gone_S], prompt_S[~gone_S]))


def _beside(side: SidesDocument) -> str:
    low, high = side["difference_interval"]
    return f"{side['sampled']:.3g} sampled (95 % interval of the difference {low:.2g} to {high:.2g})"


def _sides(values_S: Floats, gone_S: Bools, prompt_S: NDArray[np.intp]) -> SidesDocument | None:
    """Compare the means of a quantity, or return None if it is not known of nearly all requests."""
    known = np.isfinite(values_S)
    if min(known[gone_S].mean(), known[~gone_S].mean()) < _KNOWN:
        return None
    lost, kept = (clustered(values_S[side], prompt_S[side]) for side in (known & gone_S, known & ~gone_S))
    share = float(gone_S.mean())
    lacking, half = share * (lost.value - kept.value), _NORMAL * share * math.hypot(lost.error, kept.error)
    return {
        "sampled": digits(kept.value + lacking),
        "trained": digits(kept.value),
        "difference_interval": [digits(lacking - half), digits(lacking + half)],
    }


def _ranks(values_S: Floats) -> Floats:
    """Return the mean rank of each value [S], equal for equal ones."""
    _, index, counts = np.unique(values_S, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[index.ravel()]
    return ranks


def _late(sampled: Sampled) -> LateDocument | None:
    """Return the limit beyond which requests are dropped whatever their length, and the share dropped there."""
    at = sampled.settled & sampled.training & np.isfinite(sampled.late)
    late, tokens, gone = sampled.late[at], sampled.tokens[at], ~np.isfinite(sampled.trained_at[at])
    best = None
    for limit in np.unique(late)[:-1].tolist():
        beyond = late > limit
        lost, rest = float(gone[beyond].mean()), float(gone[~beyond].mean())
        enough = beyond.sum() >= number("discarded") and lost >= number("dropped_late")
        if enough and lost - rest > number("dropped_more") and (best is None or lost - rest > best[2]):
            best = (int(limit), lost, lost - rest)
    if best is None or _of_like_length(late > best[0], tokens, gone) <= SIGNIFICANT:
        return None
    return {"limit": best[0], "dropped": digits(best[1])}


def _of_like_length(late_S: Bools, tokens_S: Floats, gone_S: Bools) -> float:
    """Return the excess drop rate of late requests over others of like length, in standard errors.

    This is the test of Mantel and Haenszel over bins of length.
    """
    edges = np.unique(np.quantile(tokens_S, np.linspace(0, 1, _BINS + 1)[1:-1]))
    of_bin = np.searchsorted(edges, tokens_S, side="left")
    n, late, gone, both = (
        np.bincount(of_bin, weights, len(edges) + 1)
        for weights in (np.ones(len(of_bin)), late_S, gone_S, late_S & gone_S)
    )
    n = np.maximum(n, 2)
    variance = late * (n - late) * gone * (n - gone) / (n * n * (n - 1))
    return float((both - late * gone / n).sum() / math.sqrt(variance.sum())) if variance.sum() > 0 else 0.0
