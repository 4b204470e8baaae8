"""What a gap looks like: which sequences, which places, which tokens, which sign. Pure.

A gap that no setting accounts for is described by these; and whether an engine's state makes it shows here, too: states spoil some
requests, or requests from some token on, while a setting or other weights spoil all of them alike.

Dimensions: ``_N`` tokens that both scored, ``_S`` sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.causes.scale import one_sided, scale_between
from logprobe.monitor.diagnosis.evidence.tokens import Tokens
from logprobe.monitor.proof.paired import OFF, differences
from logprobe.monitor.proof.sample import Floats, Scores, TokenSequence

_AGREES: Final = 0.05  # of the mean |d| that a sequence, or the beginning of one, has where it is not concerned
_MOSTLY: Final = 0.8
_RANKED: Final = 0.6  # rank correlation that is worth a word
_CHANGES: Final = 3.0  # times by which |d| grows or falls along a response
_FEW: Final = 0.05  # of the token ids
_FEWEST: Final = 4  # sequences, or tokens of one


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a gap from `a` to `b` looks like.

    Attributes:
        sequences: that were compared.
        exact: of these, those that agree although others do not.
        late: whether those that do not agree do so at the beginning of their response.
        sign: +1 when nearly all of `b` is above `a`, −1 below, 0 neither.
        temperature: by which `b` would be `a`, where one side is the other at another temperature.
        words: what else is seen, for people.
    """

    sequences: int
    exact: int
    late: bool
    sign: int
    temperature: float | None
    words: tuple[str, ...]

    @property
    def of_state(self) -> bool:
        """Whether some requests, or the later tokens of requests, are spoiled and others are not."""
        return not self.of_setting and (0 < self.exact < self.sequences or self.late)

    @property
    def of_setting(self) -> bool:
        """Whether it is what a sampling param does that one of the two scorers was not given."""
        return self.sign != 0 or self.temperature is not None


def pattern(a: Scores, b: Scores, sequences: Sequence[TokenSequence]) -> Pattern | None:
    """What the gap from `a` to `b` looks like; None where nothing was scored by both."""
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
        temperature=None if scale is None else 1 / scale[0],
        words=tuple(_words([d_S[at] for at in kept], [len(sequences[at].prompt_ids) for at in kept], off_S, tokens)),
    )


def _late(d_S: Sequence[Floats]) -> bool:
    """Whether most sequences agree in the first quarter of their response and not afterwards."""
    late = 0
    for d in d_S:
        first = max(len(d) // 4, 1)
        begin, rest = np.abs(d[:first]), np.abs(d[first:])
        late += len(d) >= _FEWEST and float(np.nanmean(begin)) < _AGREES * float(np.nanmean(rest))
    return bool(d_S) and late >= _MOSTLY * len(d_S)


def _tokens(a: Scores, b: Scores, sequences: Sequence[TokenSequence], kept: Sequence[int]) -> Tokens:
    """As the diagnosis looks at tokens: r is `a`, t is `b`; unknown is what a sample does not say."""
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
        advantage=np.full(n, np.nan),
        lag=np.zeros(n),
        version=unknown,
        replica=unknown,
        cached=unknown,
        context=context,
        sampling=unknown,
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
    """Where in the response, and from which position of prompt and response on."""
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
    """Which tokens: few ids, unlikely ones, one sign."""
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
