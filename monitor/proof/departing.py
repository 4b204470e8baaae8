"""Decision on the deviating side, from the mismatches between scorings. Pure.

    r ── state ── r′ ── engine ── q(rollout's weights) ── age ── q(trainer's weights) ── trainer ── t

Each mismatch along this chain belongs to one side. Sides above the noise floor depart, the largest first. An engine's
state is not the verdict by default. The verdict requires a matching pattern, or an experiment that reproduces the
mismatch.

A `Pattern` has the affected sequences, places and tokens of a mismatch, and its sign. It describes a mismatch that no
setting explains. It also indicates an engine's state. States affect some requests, or requests from some token on,
while a setting or other weights affect all requests alike.

Dimensions: ``_N`` tokens that both scored, ``_S`` sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.distribution import one_sided
from logprobe.monitor.judging.tokens import Tokens
from logprobe.monitor.proof.paired import OFF, Gap, differences
from logprobe.monitor.proof.sample import Floats, Scores, TokenSequence
from logprobe.monitor.proof.scale import scale_between

Departs = Literal["engine_state", "engine", "trainer", "policy_age", "none", "unknown"]
LEGS: Final[tuple[Departs, ...]] = ("engine_state", "engine", "policy_age", "trainer")
# K3 that float32 implementations reach among themselves: 2.4e-6 at 0.5 B parameters (Fast-LLM PR 525).
FLOOR: Final = 3e-6
_OF_FRESH: Final[tuple[Departs, ...]] = ("engine_state", "engine")  # the legs that a fresh engine is an end of
_BROKEN: Final = 0.01  # share of tokens that only one of two scorers gives a probability
_CHAIN: Final = 4.0  # a gap is explained where some leg has a quarter of it
_FOREIGN: Final = 0.1  # of either side's gap; r and t that are so much nearer to each other are of something else
FOREIGN: Final = (
    "r and t agree with each other and with no scorer: "
    "this sample's temperature, settings or checkpoint are not the run's"
)
UNLIKE: Final = (
    "r agrees with t and with the reference, and a fresh engine with neither: the engine that sampled did not have "
    "these settings"
)
_AGREES: Final = 0.05  # of the mean |d| that a sequence, or the beginning of one, has where it is not concerned
_MOSTLY: Final = 0.8
_RANKED: Final = 0.6  # rank correlation that is worth a word
_CHANGES: Final = 3.0  # times by which |d| grows or falls along a response
_FEW: Final = 0.05  # of the token ids
_FEWEST: Final = 4  # sequences, or tokens of one


@dataclass(frozen=True, slots=True)
class Decision:
    """`departs`: side with the largest gap. `departs_all`: all deviating sides. `why`: the reason in one sentence."""

    departs: Departs
    departs_all: tuple[Departs, ...]
    why: str


_WORDS: Final[Mapping[Departs, str]] = {
    "engine_state": "the running engine reported what a fresh engine with the same settings and weights does not",
    "engine": "a fresh engine with these settings departs from the reference",
    "trainer": "the trainer departs from the reference",
    "policy_age": "the weights that sampled and those that trained differ",
}


def above(gap: Gap | None, floor: float) -> bool:
    """Return whether a mismatch exceeds noise, on average over sequences or in a few outliers."""
    if gap is None:
        return False
    low = gap.k3 if gap.interval is None else gap.interval[0]
    return gap.broken > _BROKEN or (gap.k3 > floor and (low > floor / _CHAIN or gap.tail > 0))


def decide(
    legs: Mapping[Departs, Gap | None],
    whole: Gap | None,
    *,
    floor: float = FLOOR,
    state: Pattern | None = None,
    reproduced: Collection[Departs] = (),
    unsure: str | None = None,
) -> Decision:
    """Decide which side deviates.

    Args:
        legs: mismatch of each leg of the chain, or None if not measured.
        whole: mismatch between r and t, or None if not measured.
        floor: K3 that counts as agreement.
        state: pattern of the mismatch between r and a fresh engine, or None.
        reproduced: sides whose mismatch an experiment reproduced.
        unsure: engine settings that could not be repeated, or None.
    """
    off = sorted((leg for leg in LEGS if above(legs.get(leg), floor)), key=lambda leg: -_size(legs[leg]))
    missing = [leg for leg in LEGS if legs.get(leg) is None and leg != "policy_age"]
    if not off:
        return _quiet(legs, whole, floor, missing)
    if _foreign(whole, legs, off):
        return Decision("unknown", (), FOREIGN)
    if _unlike_the_run(whole, legs):
        return Decision("unknown", tuple(leg for leg in off if leg not in _OF_FRESH), UNLIKE)
    if _unexplained(whole, off, legs, floor):
        why = f"{_WORDS[off[0]]}, which explains less than a quarter of the gap between r and t"
        return Decision("unknown", tuple(off), why + (f"; not measured: {', '.join(missing)}" if missing else ""))
    why = "; ".join(_WORDS[leg] for leg in off)
    doubt = _doubt(state, unsure) if "engine_state" in off and "engine_state" not in reproduced else None
    if doubt is None:
        return Decision(off[0], tuple(off), why)
    others = [leg for leg in off if leg != "engine_state"]
    kept = others if state is not None and state.of_setting else off
    return Decision(others[0] if others else "unknown", tuple(kept), f"{why}: {doubt}")


def _quiet(legs: Mapping[Departs, Gap | None], whole: Gap | None, floor: float, missing: Sequence[Departs]) -> Decision:
    """Return the decision that no measured side deviates."""
    if above(whole, floor):
        return Decision("unknown", (), f"r and t differ; not measured: {', '.join(missing) or 'nothing'}")
    if missing:
        nothing = len(missing) == len(LEGS) - 1
        why = "nothing could be compared" if nothing else f"no departure found; not measured: {', '.join(missing)}"
        return Decision("unknown", (), why)
    tails = [gap for gap in (*legs.values(), whole) if gap is not None and gap.tail]
    if tails:
        far = "; ".join(f"{gap.tail} tokens between {gap.a} and {gap.b}, by up to {gap.largest:.2g}" for gap in tails)
        return Decision("unknown", (), f"K3 is at the noise floor, but a few tokens are far off: {far}")
    return Decision("none", (), "every scorer agrees within the noise floor: nothing to find")


def _foreign(whole: Gap | None, legs: Mapping[Departs, Gap | None], off: Collection[Departs]) -> bool:
    """Return whether the sample does not belong to its scorers. In this case r and t are much closer to each other than
    to their scorers.
    """
    if whole is None:
        return False
    if whole.abs_diff_mean == 0 and not whole.broken:  # no two implementations agree in every bit
        return True
    state, trainer = legs.get("engine_state"), legs.get("trainer")
    if state is None or trainer is None or not {"engine_state", "trainer"} <= set(off):
        return False
    return _size(whole) < _FOREIGN * min(_size(state), _size(trainer))


def _unlike_the_run(whole: Gap | None, legs: Mapping[Departs, Gap | None]) -> bool:
    """Return whether a fresh engine deviates from all others, including r. It then differs from the engine that
    sampled.
    """
    trainer, *fresh = (legs.get(leg) for leg in ("trainer", *_OF_FRESH))
    if whole is None or trainer is None or None in fresh:
        return False
    return max(_size(whole), _size(trainer)) < _FOREIGN * min(_size(gap) for gap in fresh)


def _doubt(state: Pattern | None, unsure: str | None) -> str | None:
    """Return a reason to doubt that a mismatch between r and a fresh engine comes from the engine's state, or None."""
    if state is None or (state.of_state and unsure is None):
        return None
    if state.sign:
        return (
            "all log-ratios have one sign, as where top-p, top-k, min-p or a grammar was in use that the sample does "
            "not name; "
            "no state of an engine does that"
        )
    if state.temperature is not None:
        return f"as at a temperature {state.temperature:.2f} times the sample's, which no state of an engine does"
    if unsure is not None:
        return f"its state, or what could not be repeated: {unsure}"
    return "in all sequences and from their first token on: its state, its weights, or a setting that was not recorded"


def _unexplained(whole: Gap | None, off: list[Departs], legs: Mapping[Departs, Gap | None], floor: float) -> bool:
    """Return whether a leg is missing and the measured legs are far too small for the whole mismatch."""
    if (
        whole is None
        or not above(whole, floor)
        or all(legs.get(leg) is not None for leg in LEGS if leg != "policy_age")
    ):
        return False
    return _CHAIN * max(_size(legs[leg]) for leg in off) < whole.k3


def _size(gap: Gap | None) -> float:
    if gap is None:
        return 0.0
    return gap.k3 + 20.0 * gap.broken


@dataclass(frozen=True, slots=True)
class Pattern:
    """Shape of a mismatch from `a` to `b`.

    Attributes:
        sequences: number of compared sequences.
        exact: number of compared sequences that agree, although others do not.
        late: true if the other sequences agree at the beginning of their response.
        sign: +1 if nearly all of `b` is above `a`, −1 if below, else 0.
        temperature: ratio of temperatures between the sides, or None unless only the temperature differs.
        words: further observations for users.
    """

    sequences: int
    exact: int
    late: bool
    sign: int
    temperature: float | None
    words: tuple[str, ...]

    @property
    def of_state(self) -> bool:
        """True if only some requests, or only the later tokens of requests, are affected."""
        return not self.of_setting and (0 < self.exact < self.sequences or self.late)

    @property
    def of_setting(self) -> bool:
        """True if a sampling param that one of the two scorers lacked explains the mismatch."""
        return self.sign != 0 or self.temperature is not None


def pattern(a: Scores, b: Scores, sequences: Sequence[TokenSequence]) -> Pattern | None:
    """Return the shape of the mismatch from `a` to `b`, or None without a token scored by both."""
    d_S = differences(a, b)
    kept = [at for at, d in enumerate(d_S) if np.isfinite(d).any()]
    if not kept:
        return None
    size_S = np.array([np.nanmean(np.abs(d_S[at])) for at in kept])
    whole = float(np.nanmean(np.abs(np.concatenate([d_S[at] for at in kept]))))
    off_S = size_S > _AGREES * whole
    tokens = _tokens(a, b, sequences, kept)
    scale = scale_between(tokens)
    return Pattern(
        sequences=len(kept),
        exact=int((~off_S).sum()),
        late=_late([d_S[at] for at, off in zip(kept, off_S, strict=True) if off]),
        sign=one_sided(tokens),
        temperature=None if scale is None else 1 / scale,
        words=tuple(_words([d_S[at] for at in kept], [len(sequences[at].prompt_ids) for at in kept], off_S, tokens)),
    )


def _late(d_S: Sequence[Floats]) -> bool:
    """Return whether most sequences agree in the first quarter of their response and not afterwards."""
    late = 0
    for d in d_S:
        first = max(len(d) // 4, 1)
        begin, rest = np.abs(d[:first]), np.abs(d[first:])
        late += len(d) >= _FEWEST and float(np.nanmean(begin)) < _AGREES * float(np.nanmean(rest))
    return bool(d_S) and late >= _MOSTLY * len(d_S)


def _tokens(a: Scores, b: Scores, sequences: Sequence[TokenSequence], kept: Sequence[int]) -> Tokens:
    """Return tokens in the format of the diagnosis, with `a` as r, `b` as t and the rest unknown."""
    lengths = [len(sequences[at].response_ids) for at in kept]
    n = sum(lengths)
    prompts = {prompt: code for code, prompt in enumerate(dict.fromkeys(sequences[at].prompt_ids for at in kept))}
    r, t = (np.concatenate([np.asarray(side[at], np.float64) for at in kept]) for side in (a, b))
    unknown: NDArray[np.intp] = np.full(n, -1, np.intp)
    context = np.repeat([prompts[sequences[at].prompt_ids] for at in kept], lengths).astype(np.intp)
    with np.errstate(invalid="ignore"):
        d = t - r
    return Tokens(
        step=np.zeros(n, np.int64),
        sequence=np.repeat(np.arange(len(kept)), lengths).astype(np.intp),
        place=np.concatenate([np.arange(length) for length in lengths]).astype(np.intp),
        last=np.zeros(n, np.bool_),
        token_id=np.concatenate([sequences[at].response_ids for at in kept]).astype(np.intp),
        r=r,
        t=t,
        d=d,
        broken=~np.isfinite(d),
        entropy=np.full(n, np.nan),
        lag=np.zeros(n),
        version=unknown,
        replica=unknown,
        cached=unknown,
        context=context,
    ).valid


def _words(d_S: Sequence[Floats], prompts: Sequence[int], off_S: NDArray[np.bool_], tokens: Tokens) -> Iterator[str]:
    if not off_S.all():
        yield f"{int((~off_S).sum())} of {len(d_S)} sequences agree"
    prompt_S = np.array(prompts, np.float64)
    longer = _rank_correlation(np.array([np.nanmean(np.abs(d)) for d in d_S]), prompt_S)
    if abs(longer) > _RANKED:
        yield f"|d| {'grows' if longer > 0 else 'falls'} with the prompt's length (rank correlation {longer:.2f})"
    yield from _by_place(d_S, prompt_S)
    yield from _by_token(tokens)


def _by_place(d_S: Sequence[Floats], prompt_S: Floats) -> Iterator[str]:
    """Describe the affected places in the response and the first affected position of prompt and response."""
    halves = [(np.abs(d[: len(d) // 2]), np.abs(d[len(d) // 2 :])) for d in d_S if len(d) >= _FEWEST]
    if not halves:
        return
    first, second = (float(np.nanmean(np.concatenate(part))) for part in zip(*halves, strict=True))
    if max(first, second) > _CHANGES * min(first, second):
        yield f"mean |d| is {first:.2g} in the first half of responses, {second:.2g} in the second"
    positions = np.concatenate([length + np.arange(len(d)) for d, length in zip(d_S, prompt_S, strict=True)])
    off = np.abs(np.concatenate(d_S)) > OFF
    if off.any() and (before := int((positions < positions[off].min()).sum())) > 0 and before >= _FEW * len(positions):
        yield f"no token before position {int(positions[off].min())} of prompt and response departs"


def _by_token(tokens: Tokens) -> Iterator[str]:
    """Describe the affected tokens by few ids, low probability and common sign."""
    size = np.abs(tokens.d)
    if len(size) < _FEWEST or not size.sum() > 0:
        return
    _, index = np.unique(tokens.token_id, return_inverse=True)
    by_id = np.sort(np.bincount(index, size))[::-1]
    few = max(int(_FEW * len(by_id)), 1)
    if by_id[:few].sum() > _MOSTLY * by_id.sum():
        yield f"{few} of {len(by_id)} token ids have {by_id[:few].sum() / by_id.sum():.0%} of it"
    likely = _rank_correlation(size, tokens.r)
    if abs(likely) > _RANKED:
        yield f"|d| is larger for {'likely' if likely > 0 else 'unlikely'} tokens (rank correlation {likely:.2f})"
    up = float(np.mean(tokens.d > 0))
    if max(up, 1 - up) > _MOSTLY:
        yield f"{max(up, 1 - up):.0%} of the log-ratios are {'positive' if up > 1 - up else 'negative'}"


def _rank_correlation(x: Floats, y: Floats) -> float:
    if len(x) < _FEWEST or not (x.std() > 0 and y.std() > 0):
        return 0.0
    ranks: list[Any] = [np.argsort(np.argsort(values)) for values in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])
