"""Sample of raw tokens as flat arrays, the input of per-token rules.

Dimensions: ``_N`` tokens, ``_M`` tokens of the stored rows, masked-out ones included, ``_S`` sequences.

Runs with several answers to a prompt contain a control experiment, because such answers often begin with the same
tokens. Where they diverge, two tokens were drawn from the same distribution. Its normaliser (of a softmax, a nucleus or
a grammar) cancels in the difference of their log-probs. With Δ over such siblings:

- two temperatures of the same logits: Δt = β·Δr exactly, however the normalisers differ;
- a truncation, a mask, a padded vocabulary: Δt = Δr exactly;
- logits in bfloat16: Δ is a multiple of a coarse power of two;
- other weights, other caches, noise: none of these.

Before the answers diverge, the same token was computed twice. A difference then comes from the batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.kernel.arithmetic import sound
from logprobe.collectors.recorder.arrays import offsets_of
from logprobe.monitor import ragged
from logprobe.monitor.judging.measures import Floats, Mean, clustered, k3_of
from logprobe.monitor.judging.once import once
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.metrics.lag import Versions
from logprobe.monitor.metrics.sums import exp_clamped
from logprobe.monitor.ragged import floats

Codes = NDArray[np.intp]
Bools = NDArray[np.bool_]

DEEPEST: Final = 256  # tokens of an answer that are compared with those of others
_FEWEST: Final = 20  # tokens with a sibling
_GRID: Final = (
    2.0**-8
)  # bfloat16 numbers above 1/2 in size are multiples of it; logits of a vocabulary are mostly larger
_NEAR: Final = 1e-5  # float32 rounding of a log-prob near −10, several times; of random numbers 2 · 1e-5 / 2^-8 = 0.5 % are as near
_CERTAIN: Final = -1e-3  # tokens nearer to 0 vary too little to tell
_OUTER: Final = 0.99  # of the tokens; the worst of 1 % may be of a second fault
_INNER: Final = (
    0.5  # of the tokens: what varies by itself varies in most; two wrong ranks of 16 in a quarter of the pairs
)
_VARIES: Final = 0.5  # of the mismatch: one that is drawn each time differs from its mean of two by 0.7 of it
_ALONE: Final = 3.0  # times: by how much more one side varies than the other, where rounding makes both vary


def of_one_lag(lag: Floats, tokens: Floats) -> Bools:
    """Return the rows of one weight lag: 0 or unknown, or the most frequent lag if hardly any token has the former."""
    own: Bools = ~(lag > 0)
    if own.all() or tokens[own].sum() > number("hardly_any") * tokens.sum():
        return own
    lags, index = np.unique(lag[~own], return_inverse=True)
    most: Bools = lag == lags[np.bincount(index, tokens[~own]).argmax()]
    return most


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens under the mask, in the order of their sequences; arrays [N]. Codes are −1 where unknown.

    Attributes:
        step: optimizer step.
        sequence: number of the sequence, without gaps in the whole sample.
        place: number of earlier tokens under the mask in the sequence.
        last: true for the last token under the mask of a sequence.
        token_id: token id in the trainer's record.
        r: rollout log-prob, NaN where missing.
        t: trainer log-prob, NaN where missing.
        d: log-ratio t − r, possibly without an explained part, NaN where either is missing.
        broken: true if the token is excluded from every mean.
        entropy: entropy reported by the trainer, NaN where absent.
        lag: trainer's version − the token's, NaN where unknown.
        version: code of the token's weight version.
        replica: code of the replica.
        cached: 1 if the request had cached prompt tokens, else 0.
        context: code of the prompt, equal for samples that share it.
    """

    step: NDArray[np.int64]
    sequence: Codes
    place: Codes
    last: Bools
    token_id: Codes
    r: Floats
    t: Floats
    d: Floats
    broken: Bools
    entropy: Floats
    lag: Floats
    version: Codes
    replica: Codes
    cached: Codes
    context: Codes

    def __len__(self) -> int:
        return len(self.d)

    def where(self, keep_N: Bools) -> Tokens:
        """Return the selected tokens."""
        if keep_N.all():
            return self
        kept = np.flatnonzero(keep_N)
        return Tokens(**{f.name: getattr(self, f.name).take(kept) for f in dataclasses.fields(self)})

    @cached_property
    def valid(self) -> Tokens:
        """Tokens with a usable log-ratio."""
        return self.where(np.isfinite(self.d) & ~self.broken)

    @cached_property
    def nameless(self) -> bool:
        """True if all tokens have one id although their probabilities differ, as a stand-in for unknown ids has."""
        if not len(self) or np.ptp(self.token_id):
            return False
        return bool(np.fmin.reduce(self.r) < np.fmax.reduce(self.r))  # false if no r is known

    @cached_property
    def fresh(self) -> Tokens:
        """Tokens that are not known to come from weights older than the trainer's."""
        return self.where(~(self.lag > 0))

    @cached_property
    def alike(self) -> Tokens:
        """Tokens of one weight lag, see `of_one_lag`."""
        return self.where(of_one_lag(self.lag, np.ones(len(self))))

    def since(self, step: int) -> Tokens:
        """Return the tokens of this step and later ones."""
        return self.where(self.step >= step)

    @cached_property
    def parent(self) -> Codes:
        """Code of each token's context [N], −1 for a context of one token."""
        return _contexts(self)

    @cached_property
    def repeated(self) -> Tokens:
        """Tokens with a shared context."""
        return self.where(self.parent >= 0)

    @cached_property
    def k3(self) -> Floats:
        """K3 of each token [N], from the current d."""
        return k3_of(self.d)

    @cached_property
    def inverse_ratio(self) -> Mean:
        """Mean of 1/ρ − 1, which is 0 if t belongs to the sampled distribution."""
        return clustered(exp_clamped(-self.d) - 1, self.sequence)


def from_table(table: pa.Table, versions: Versions) -> Tokens:
    """Return the tokens of the rows of ``diagnosis_tokens`` [S] as arrays.

    Args:
        table: sequences in order, each with at least one token.
        versions: known weight versions.
    """
    sequence_M, mask_M, place_M = layout(table)
    lengths_S = ragged.lengths(table["token_ids"])
    counts_S = np.bincount(sequence_M, mask_M, minlength=len(lengths_S))
    own_M = _own_places(table, lengths_S, mask_M, place_M)
    (r_M, has_r_M), (t_M, has_t_M) = _rollout_side(table, lengths_S, own_M), _elements(table["t"], lengths_S)
    ours, theirs = table["weight_version"].take(pa.array(sequence_M)), _versions(table, lengths_S, own_M, mask_M)
    lags = versions.lags(ours.cast(pa.string()), theirs.cast(pa.string()))
    context = pc.if_else(table["prompt_hash"].is_valid(), table["prompt_hash"], table["group_id"])
    everything = Tokens(
        step=table["step"].to_numpy().astype(np.int64)[sequence_M],
        sequence=sequence_M,
        place=place_M,
        last=mask_M & (place_M == counts_S[sequence_M] - 1),
        token_id=ragged.flat_ids(table["token_ids"]).astype(np.intp),
        r=r_M,
        t=t_M,
        d=t_M - r_M,
        broken=mask_M & has_r_M & has_t_M & ~sound(r_M, t_M),
        entropy=_elements(table["entropy"], lengths_S)[0],
        lag=lags["versions"],
        version=_codes(theirs),
        replica=_codes(table["replica"])[sequence_M],
        cached=_cached(table["cached_prefix_tokens"])[sequence_M],
        context=_codes(context)[sequence_M],
    )
    return everything.where(mask_M)


def layout(table: pa.Table) -> tuple[Codes, Bools, Codes]:
    """Return the layout of each token in the rows of ``diagnosis_tokens`` [M].

    The arrays are the number of its sequence, whether it is under the mask, and the number of earlier tokens under the
    mask in its sequence.
    """
    lengths_S = ragged.lengths(table["token_ids"])
    sequence_M: Codes = np.repeat(np.arange(len(lengths_S)), lengths_S).astype(np.intp)
    mask_M = ragged.flat_mask(table["mask"], lengths_S)
    before_M1 = offsets_of(mask_M)
    place_M: Codes = before_M1[:-1] - before_M1[offsets_of(lengths_S)[:-1]][sequence_M]
    return sequence_M, mask_M, place_M.astype(np.intp)


def _own_places(table: pa.Table, lengths_S: Codes, mask_M: Bools, place_M: Codes) -> Codes:
    """Return the index of each token in its rollout record [M], −1 without one.

    It is the token's position, or its rank among those under the mask. An index may exceed the record.
    """
    by_position_S = np.asarray(pc.equal(table["alignment"], "all").fill_null(False))
    by_mask_S = np.asarray(pc.is_in(table["alignment"], pa.array(["masked", "prefix"])))
    offsets_S1 = offsets_of(lengths_S)
    position_M = np.arange(offsets_S1[-1]) - np.repeat(offsets_S1[:-1], lengths_S)
    by_mask_M = np.where(np.repeat(by_mask_S, lengths_S) & mask_M, place_M, -1)
    return np.where(np.repeat(by_position_S, lengths_S), position_M, by_mask_M).astype(np.intp)


def _rollout_side(table: pa.Table, lengths_S: Codes, own_M: Codes) -> tuple[Floats, Bools]:
    """Return r as received by the trainer, or else from the rollout record [M], and a mask of the tokens that have
    it."""
    r_M, has_M = _elements(table["received"], lengths_S)
    received_S, joined_S = (
        np.asarray(pc.equal(table["rollout_source"], name).fill_null(False)) for name in ("received", "joined")
    )
    received_M = np.repeat(received_S, lengths_S)
    r_M, has_M = np.where(received_M, r_M, np.nan), has_M & received_M
    if not joined_S.any():
        return r_M, has_M
    sizes_S = np.maximum(ragged.lengths(table["source"]), 0)
    elements, starts_S = ragged.one_array(table["source"]).flatten(), offsets_of(sizes_S)[:-1]
    at_M = np.flatnonzero(np.repeat(joined_S, lengths_S) & (own_M >= 0) & (own_M < np.repeat(sizes_S, lengths_S)))
    taken = (np.repeat(starts_S, lengths_S) + own_M)[at_M]
    r_M[at_M], has_M[at_M] = floats(elements)[taken], np.asarray(elements.is_valid())[taken]
    return r_M, has_M


def _elements(column: pa.ChunkedArray, lengths_S: Codes) -> tuple[Floats, Bools]:
    """Return the elements of lists [M], NaN for null, and a mask of the non-null ones. A null list has only null
    elements."""
    values_M, has_M = np.full(int(lengths_S.sum()), np.nan), np.zeros(int(lengths_S.sum()), np.bool_)
    if column.null_count < len(column):
        elements, there_M = ragged.one_array(column).flatten(), np.repeat(np.asarray(column.is_valid()), lengths_S)
        values_M[there_M], has_M[there_M] = floats(elements), np.asarray(elements.is_valid())
    return values_M, has_M


def _versions(table: pa.Table, lengths_S: Codes, own_M: Codes, mask_M: Bools) -> pa.ChunkedArray:
    """Return the version of the weights that sampled each token [M], according to engine or trainer.

    It is null where the two differ.
    """
    names: dict[str, int] = {}
    offsets_S1 = offsets_of(lengths_S)
    position_M = np.arange(offsets_S1[-1]) - np.repeat(offsets_S1[:-1], lengths_S)
    all_S = np.asarray(pc.equal(table["alignment"], "all").fill_null(False))
    stated_M = np.where(np.repeat(all_S, lengths_S) | mask_M, position_M, -1)
    engine_M = _of_spans(table["spans"], offsets_S1, own_M, names)
    trainer_M = _of_spans(table["stated"], offsets_S1, stated_M, names)
    known_M = np.where(trainer_M < 0, engine_M, np.where((engine_M < 0) | (engine_M == trainer_M), trainer_M, -1))
    codes = pa.array(known_M.astype(np.int32), mask=known_M < 0)
    return pa.chunked_array([pa.array(list(names), pa.string()).take(codes)])


def _of_spans(column: pa.ChunkedArray, offsets_S1: Codes, at_M: Codes, names: dict[str, int]) -> Codes:
    """Return the code in `names` of the first span that contains the place `at_M` of each token [M], −1 for none."""
    codes_M = np.full(len(at_M), -1, np.intp)
    for sequence, spans in enumerate(column.to_pylist()) if column.null_count < len(column) else ():
        codes, at = (each[offsets_S1[sequence] : offsets_S1[sequence + 1]] for each in (codes_M, at_M))
        for span in reversed(spans or ()):
            if span["start"] is not None and span["end"] is not None:
                version = span["version"]
                code = -1 if version is None else names.setdefault(version, len(names))
                codes[(at >= max(span["start"], 0)) & (at < span["end"])] = code
    return codes_M


def replicas_of(table: pa.Table) -> tuple[str, ...]:
    """Return the names of the replicas, in the order of their codes."""
    return tuple(pc.unique(table["replica"]).drop_null().to_pylist())


def _cached(column: pa.ChunkedArray) -> Codes:
    return pc.if_else(column.is_valid(), pc.greater(column, 0).cast(pa.int64()), -1).to_numpy().astype(np.intp)  # type: ignore[no-any-return]


def _codes(column: pa.ChunkedArray) -> Codes:
    """Return the index of each value among the column's values, −1 for null."""
    values: Any = pc.unique(column).drop_null()
    if not len(values):
        return np.full(len(column), -1, np.intp)
    codes: Codes = pc.index_in(column, value_set=values).fill_null(-1).to_numpy().astype(np.intp)
    return codes


def _contexts(tokens: Tokens) -> Codes:
    """Return a code of step, weights, prompt and all preceding tokens [N].

    It is −1 if one of these is unavailable, or if no other token shares the context.
    """
    codes = np.full(len(tokens.place), -1, np.intp)
    if not len(codes):
        return codes
    current = np.full(int(tokens.sequence.max()) + 1, -1, np.intp)
    width = int(tokens.token_id.max()) + 1
    order = np.argsort(tokens.place, kind="stable")
    begins = np.searchsorted(tokens.place[order], np.arange(min(int(tokens.place.max()), DEEPEST) + 2))
    for place in range(len(begins) - 1):
        at = order[begins[place] : begins[place + 1]]
        parent = _roots(tokens, at) if place == 0 else current[tokens.sequence[at]]
        at, parent = _shared(at[tokens.context[at] >= 0], parent[tokens.context[at] >= 0])
        if not len(at):
            break
        codes[at] = parent + codes.max() + 1
        _, following = np.unique(parent * width + tokens.token_id[at], return_inverse=True)
        current[:] = -1
        current[tokens.sequence[at]] = following
    return codes


def _roots(tokens: Tokens, at: Codes) -> Codes:
    """Return a code for the start of a sequence."""
    keys = np.stack([tokens.context[at], tokens.version[at], tokens.step[at]])
    _, root = np.unique(keys, axis=1, return_inverse=True)
    return root.reshape(-1).astype(np.intp)


def _shared(at: Codes, parent: Codes) -> tuple[Codes, Codes]:
    """Return a mask of the tokens that share a parent, and consecutive numbers of these parents."""
    at, parent = at[parent >= 0], parent[parent >= 0]
    _, index, counts = np.unique(parent, return_inverse=True, return_counts=True)
    several = counts[index] > 1
    _, number = np.unique(index[several], return_inverse=True)
    return at[several], number.astype(np.intp)


@dataclass(frozen=True, eq=False)
class Siblings:
    """Tokens that share their context with a different token.

    Attributes:
        tokens: selected tokens [K].
        r: rollout log-probs less the mean of their context [K].
        t: trainer log-probs less the mean of their context [K].
    """

    tokens: Tokens
    r: Floats
    t: Floats

    @property
    def slope(self) -> float:
        """Slope β of Δt = β·Δr by total least squares through 0, since both sides have errors."""
        rr, tt, rt = float(self.r @ self.r), float(self.t @ self.t), float(self.r @ self.t)
        if rt == 0:
            return math.nan
        return (tt - rr + math.sqrt((tt - rr) ** 2 + 4 * rt * rt)) / (2 * rt)

    def misfit(self, slope: float) -> float:
        """Return the root mean square of Δt − slope·Δr over that of Δr.

        The worst 1 % is omitted, so that a few tokens with another fault do not decide.
        """
        left, size = np.abs(self.t - slope * self.r), math.sqrt(float(np.mean(self.r**2)))
        kept = np.sort(left)[: max(int(len(left) * _OUTER), 1)]
        return math.sqrt(float(np.mean(kept**2))) / size if size > 0 else math.nan

    def scaled(self, slope: float) -> Tokens:
        """Return the tokens with the log-ratio that remains after a common normaliser and one slope."""
        return dataclasses.replace(self.tokens, d=self.t - slope * self.r)


@once
def siblings_of(tokens: Tokens) -> Siblings | None:
    """Return the tokens that share their context with a different token, or None for too few."""
    usable, parent = tokens.repeated, tokens.parent[tokens.parent >= 0]
    repeated = _parting(parent, usable.token_id)
    if repeated.sum() < _FEWEST:
        return None
    some = usable.where(repeated)
    _, index = np.unique(parent[repeated], return_inverse=True)
    return Siblings(some, _centred(some.r, index), _centred(some.t, index))


def on_grid(tokens: Tokens, values_N: Floats, temperatures: Iterable[float]) -> float:
    """Return the share of siblings whose difference is on the bfloat16 grid, NaN for too few.

    Args:
        tokens: tokens of the values.
        values_N: log-probs of one side.
        temperatures: possible divisors of this side's logits, of which the one with the largest share counts.
    """
    shared = tokens.parent >= 0
    parent, values, ids = tokens.parent[shared], values_N[shared], tokens.token_id[shared]
    order = np.lexsort((values, parent))
    parent, values, ids = parent[order], values[order], ids[order]
    steps = np.diff(values)[(np.diff(parent) == 0) & (np.diff(ids) != 0)]
    if len(steps) < _FEWEST:
        return math.nan
    return max(_grid_share(steps * temperature, max(temperature, 1.0)) for temperature in temperatures)


def _grid_share(steps: Floats, scale: float) -> float:
    return float(np.mean(np.abs(steps - np.round(steps / _GRID) * _GRID) < _NEAR * scale))


@dataclass(frozen=True, slots=True)
class Spread:
    """Root mean square deviation of repeated computations of a token, relative to that of its log-ratio.

    The values cover all tokens and those without the largest deviations. Noise of one side affects most tokens, so both
    must show it.

    Attributes:
        engine: ratio for r.
        trainer: ratio for t.
        n: tokens computed more than once.
    """

    engine: float
    trainer: float
    n: int

    @property
    def alone(self) -> bool:
        """True if the trainer alone is non-deterministic. Rounding that depends on the batch affects both sides."""
        return self.trainer > max(_VARIES, _ALONE * self.engine)


def spread_of(tokens: Tokens) -> Spread | None:
    """Return the variation of r and t for repeated tokens, or None if too few are computed twice."""
    usable, parent = tokens.repeated, tokens.parent[tokens.parent >= 0]
    keep = usable.r < _CERTAIN
    code = parent[keep] * (int(usable.token_id.max(initial=0)) + 1) + usable.token_id[keep]
    _, index, counts = np.unique(code, return_inverse=True, return_counts=True)
    twice = counts[index] > 1
    n = int(twice.sum())
    centred = [_centred(side[keep], index)[twice] for side in (usable.r, usable.t)]
    if n < number("fewest") or not usable.d[keep][twice].any():
        return None
    parts = []
    for most in (1.0, _INNER):
        d, r, t = (_size(values, most) for values in (usable.d[keep][twice], *centred))
        parts.append((r / d, t / d) if d > 0 else (0.0, 0.0))
    return Spread(max(r for r, _ in parts), min(t for _, t in parts), n)


def _size(values: Floats, most: float) -> float:
    """Return the root mean square of the smallest values. `most`: share of the values to keep."""
    kept = np.sort(np.abs(values))[: max(int(len(values) * most), 1)]
    return math.sqrt(float(np.mean(kept**2)))


def _parting(parent: Codes, token_id: Codes) -> Bools:
    """Return a mask of the tokens whose context was followed by different tokens [N]."""
    with_parent = np.flatnonzero(parent >= 0)
    result = np.zeros(len(parent), np.bool_)
    if len(with_parent):
        _, index = np.unique(parent[with_parent], return_inverse=True)
        low, high = np.full(index.max() + 1, np.iinfo(np.intp).max), np.full(index.max() + 1, -1)
        np.minimum.at(low, index, token_id[with_parent])
        np.maximum.at(high, index, token_id[with_parent])
        result[with_parent] = (high > low)[index]
    return result


def _centred(values: Floats, index: Codes) -> Floats:
    centred: Floats = values - (np.bincount(index, values) / np.bincount(index))[index]
    return centred
