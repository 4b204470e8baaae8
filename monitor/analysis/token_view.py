"""Tokens of one sequence for inspection: both log-probs, ρ, K3, and the fault of broken tokens.

The view includes the effect of a correction on each token and the responsible rule. All rules depend on a token or its
sequence alone, so one sequence suffices. Only the normalization of weights needs the batch's mean, which the caller
passes. Pure.

Dimension: ``_N`` tokens of the sequence, masked ones included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.apply import outcome_of
from logprobe.collectors.correction.batch import tokens_of as correction_tokens
from logprobe.collectors.correction.summary import Outcome
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.kernel import pairs
from logprobe.collectors.kernel.arithmetic import CLAMP, broken_kinds, zero_of_unlikely
from logprobe.collectors.kernel.pairs import Pair
from logprobe.collectors.kernel.statistics import ZERO_IS_PLACEHOLDER
from logprobe.monitor import queries
from logprobe.monitor.analysis.profiles import k3
from logprobe.monitor.queries import Source
from logprobe.monitor.ragged import floats

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# States of a token, by number: place in `STATES`. From the fourth on it is broken, by the kinds of
# `logprobe.collectors.kernel.arithmetic`.
BROKEN: Final = (
    "nonfinite_behaviour",
    "nonfinite_policy",
    "sentinel_behaviour",
    "sentinel_policy",
    "positive_behaviour",
    "positive_policy",
    "zero_behaviour",
    "zero_policy",
)
STATES: Final = ("measured", "masked", "missing", *BROKEN)
MASKED, MISSING, FIRST_BROKEN = 1, 2, 3
SIDES: Final = {pair: tuple(side.removesuffix("_logprobs") for side in sides) for pair, sides in pairs.SIDES.items()}
_RECORDED: Final = ("rollout", "trainer", "current", "reference", "teacher")
_LISTED: Final = 200  # worst tokens that a reader may step through


@dataclass(frozen=True, eq=False)
class Side:
    """Log-probs of one policy [N]. `values`: NaN where unrecorded. `known`: false where unrecorded, true for a recorded
    NaN.
    """

    values_N: Floats
    known_N: Flags


@dataclass(frozen=True, eq=False)
class Tokens:
    """One training record, arrays [N]. `entropy_N`, `advantage_N`: NaN for missing values.

    `version_N`: index in `versions` of the engine's weight version that sampled the token, or −1 if unknown.
    """

    token_id_N: NDArray[np.int64]
    mask_N: Flags
    sides: dict[str, Side]  # rollout (r), trainer (t), current (c), reference, teacher
    entropy_N: Floats
    advantage_N: Floats
    version_N: NDArray[np.int32]
    versions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.token_id_N)


@dataclass(frozen=True, eq=False)
class PairTokens:
    """A pair's view of a sequence, arrays [N].

    Attributes:
        state_N: index in `STATES`.
        d_N: log-ratio, policy − behaviour. Like the following values, NaN unless measured.
        ratio_N: ρ = exp(clamp(d, ±20)).
        k3_N: exp(clamp(d)) − 1 − d.
        worst: at most 200 positions, broken tokens first, then by size of d.
    """

    state_N: NDArray[np.int8]
    d_N: Floats
    ratio_N: Floats
    k3_N: Floats
    worst: NDArray[np.int64]

    @property
    def measured(self) -> int:
        """Number of tokens in the sums."""
        return int(np.count_nonzero(self.state_N == 0))

    @property
    def broken(self) -> int:
        """Number of broken tokens under the mask."""
        return int(np.count_nonzero(self.state_N >= FIRST_BROKEN))

    @property
    def log_ratio(self) -> float | None:
        """Σ d, or None without a measured token."""
        return float(np.nansum(self.d_N)) if self.measured else None

    @property
    def sequence_ratio(self) -> float | None:
        """exp(clamp(Σ d, ±20)), the product of the measured tokens' ratios."""
        return None if self.log_ratio is None else float(np.exp(np.clip(self.log_ratio, -CLAMP, CLAMP)))

    @property
    def geometric_ratio(self) -> float | None:
        """exp(mean d)."""
        return None if self.log_ratio is None else float(np.exp(np.clip(self.log_ratio / self.measured, -CLAMP, CLAMP)))


def read_tokens(source: Source, run: str, step: int, *, segment: str, row: int) -> Tokens | None:
    """Return the tokens of one training record by its key, or None if its raw tokens are not kept.

    Raises:
        QueryError: the store refused, see `Reader.read`.
    """
    table = queries.app_tokens_sequence(source, run=run, step=step, segment=segment, row=row)
    return tokens_of(table) if table.num_rows else None


def tokens_of(table: pa.Table) -> Tokens:
    """Return the rows of ``sql/app_tokens_sequence.sql`` as arrays."""
    encoded = table["weight_version"].combine_chunks().dictionary_encode()
    return Tokens(
        token_id_N=_numbers(table["token_id"], np.int64, -1),
        mask_N=_numbers(table["mask"], np.bool_, fill=False),
        sides={name: _side(table[f"{name}_logprob"]) for name in _RECORDED},
        entropy_N=_side(table["entropy"]).values_N,
        advantage_N=_side(table["advantage"]).values_N,
        version_N=_numbers(encoded.indices, np.int32, -1),
        versions=tuple(encoded.dictionary.to_pylist()),
    )


def pair_tokens(tokens: Tokens, pair: Pair) -> PairTokens:
    """Return the state, the log-ratio and the terms of `pair` for each token."""
    behaviour, policy = (tokens.sides[name] for name in SIDES[pair])
    state_N = _states(tokens.mask_N, behaviour, policy, zero_is_placeholder=pair in ZERO_IS_PLACEHOLDER)
    fine_N = state_N == 0
    with np.errstate(invalid="ignore"):  # inf − inf under a state that says so
        d_N = np.where(fine_N, policy.values_N - behaviour.values_N, np.nan)
    return PairTokens(
        state_N=state_N,
        d_N=d_N,
        ratio_N=np.exp(np.clip(d_N, -CLAMP, CLAMP)),
        k3_N=k3(d_N),
        worst=_worst(state_N, d_N),
    )


def turn_starts(mask_N: Flags) -> NDArray[np.int64]:
    """Return the positions where a turn starts: the first token under the mask, and the first one after each masked-out
    part (tool output).
    """
    return np.flatnonzero(mask_N & ~np.concatenate([np.zeros(1, np.bool_), mask_N[:-1]]))


def version_switches(version_N: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the positions of in-flight updates, where a known weight version differs from the previous known one."""
    positions = np.flatnonzero(version_N >= 0)
    return np.asarray(positions[1:][np.diff(version_N[positions]) != 0])


def _states(mask_N: Flags, behaviour: Side, policy: Side, *, zero_is_placeholder: bool) -> NDArray[np.int8]:
    state_N = np.zeros(len(mask_N), np.int8)
    with np.errstate(invalid="ignore"):
        kinds = broken_kinds(behaviour.values_N, policy.values_N)
        if zero_is_placeholder:
            kinds["n_zero_policy"] = zero_of_unlikely(behaviour.values_N, policy.values_N)
    for kind, hits_N in kinds.items():
        state_N[hits_N & (state_N == 0)] = STATES.index(kind.removeprefix("n_"))
    state_N[~(behaviour.known_N & policy.known_N)] = MISSING
    state_N[~mask_N] = MASKED
    return state_N


def _worst(state_N: NDArray[np.int8], d_N: Floats) -> NDArray[np.int64]:
    looked_at = np.flatnonzero((state_N == 0) | (state_N >= FIRST_BROKEN))
    order = np.lexsort((looked_at, -np.nan_to_num(np.abs(d_N[looked_at])), state_N[looked_at] == 0))
    return np.asarray(looked_at[order][:_LISTED])


def _side(column: pa.ChunkedArray) -> Side:
    return Side(floats(column), np.asarray(column.is_valid()))


def _numbers(column: pa.ChunkedArray | pa.Array, kind: Any, fill: Any) -> NDArray[Any]:
    return np.asarray(column.fill_null(fill)).astype(kind)


class Rule(IntEnum):
    """First applicable rule for a token. Rules that drop a whole sequence precede rules that drop a token."""

    KEPT = 0
    MASKED = 1  # before the correction: not trained on, or not recorded
    BROKEN = 2  # dropped: no log-probs
    BROKEN_SEQUENCE = 3  # dropped: a product over a sequence with a broken token is none
    VETO = 4
    REJECTED_BELOW = 5
    REJECTED_ABOVE = 6
    MASKED_BELOW = 7
    MASKED_ABOVE = 8
    LIMITED_BELOW = 9  # kept, with the weight of the bound
    LIMITED_ABOVE = 10


DROPPED = tuple(rule for rule in Rule if Rule.BROKEN <= rule <= Rule.MASKED_ABOVE)


@dataclass(frozen=True)
class Stated:
    """A correction that a trainer reports for a step. `normalizer`: divisor of its weights, or None."""

    config: CorrectionConfig
    normalizer: float | None


@dataclass(frozen=True, eq=False)
class Effect:
    """Effect of a correction on a sequence. `weight_N`: factor of the token's loss, 0 if dropped, NaN if untrained or
    unrecorded.

    `rule_N`: values of `Rule`.
    """

    weight_N: Floats
    rule_N: NDArray[np.int8]


def stated(documents: Iterable[str]) -> Stated | None:
    """Return the single known correction in the records of a step, or None.

    `documents`: values of ``step_records.correction``.
    """
    parsed = [_parsed(document) for document in documents]
    corrections = [correction for correction in parsed if correction is not None]
    if (
        not corrections
        or len(corrections) < len(parsed)
        or len({correction.config.fingerprint() for correction in corrections}) > 1
    ):
        return None
    normalizers = {correction.normalizer for correction in corrections}
    return Stated(corrections[0].config, normalizers.pop() if len(normalizers) == 1 else None)


def _parsed(document: str) -> Stated | None:
    try:
        content: Any = json.loads(document)
        config = CorrectionConfig.from_dict(content["config"])
    except (ValueError, KeyError, TypeError, ConfigurationError):
        return None
    report = content.get("report")
    return Stated(config, _positive(report.get("normalizer")) if isinstance(report, dict) else None)


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def effect(config: CorrectionConfig, tokens: Tokens, normalizer: float | None = None) -> Effect | None:
    """Return the effect of `config` on a sequence, or None if tokens, log-probs or required advantages are missing.

    `normalizer`: divisor of the batch's weights, or None for unnormalised weights.
    """
    advantages = tokens.advantage_N if np.isfinite(tokens.advantage_N[tokens.mask_N]).all() else None
    both = all(tokens.sides[name].known_N.any() for name in ("rollout", "trainer"))
    if not len(tokens) or not both or (config.needs_advantages and advantages is None):
        return None
    alone = config.replace(normalize=False)
    known_N = tokens.mask_N & tokens.sides["rollout"].known_N & tokens.sides["trainer"].known_N
    rollout, trainer = (tokens.sides[name].values_N[None] for name in ("rollout", "trainer"))
    given = (rollout, trainer, known_N[None], None if advantages is None else advantages[None])
    with np.errstate(invalid="ignore"):  # broken tokens are dropped, not warned about
        outcome = outcome_of(alone, correction_tokens(alone, *given))
    weight_N = outcome.weights[0] / (normalizer or 1.0)
    return Effect(np.where(known_N, weight_N, np.nan), _rules(config, outcome))


def _rules(config: CorrectionConfig, outcome: Outcome) -> NDArray[np.int8]:
    """Return the rule of each token [N]. Rules are applied from last to first, so that earlier rules overwrite later
    ones.
    """
    part = outcome.tokens
    masks = config.is_mode == "mask"
    hits = (
        (Rule.MASKED_ABOVE if masks else Rule.LIMITED_ABOVE, outcome.is_above),
        (Rule.MASKED_BELOW if masks else Rule.LIMITED_BELOW, outcome.is_below),
        (Rule.REJECTED_ABOVE, outcome.rs_above),
        (Rule.REJECTED_BELOW, outcome.rs_below),
        (Rule.VETO, outcome.veto),
        (Rule.BROKEN_SEQUENCE, part.valid & ~part.usable),
        (Rule.BROKEN, part.mask & ~part.valid),
        (Rule.MASKED, ~part.mask),
    )
    rule_N = np.full(part.mask.shape[1], Rule.KEPT, np.int8)
    for rule, where in hits:
        if where is not None:
            rule_N[np.broadcast_to(where, part.mask.shape)[0]] = rule
    return rule_N
