"""What a correction does to each token of a recorded sequence, and by which of its rules.

Everything but the normalization of weights looks at a token or at its sequence alone, so one sequence is enough; the mean that
weights are divided by is the batch's, and has to be told. Pure.

Dimension: ``_N`` tokens of the sequence, masked ones included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.apply import outcome_of
from logprobe.collectors.correction.batch import batch_of, tokens_of
from logprobe.collectors.correction.summary import Outcome
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.analysis.token_view import Floats, Tokens


class Rule(IntEnum):
    """Which rule decided about a token; the first that applies, what drops a whole sequence before what drops a token."""

    KEPT = 0
    MASKED = 1  # before the correction: not trained on, or not recorded
    BROKEN = 2  # dropped: no log-probs
    BROKEN_SEQUENCE = 3  # dropped: a product over a sequence with a broken token is none
    VETO = 4
    OFF_POLICY = 5
    REJECTED_BELOW = 6
    REJECTED_ABOVE = 7
    MASKED_BELOW = 8
    MASKED_ABOVE = 9
    LIMITED_BELOW = 10  # kept, with the weight of the bound
    LIMITED_ABOVE = 11


DROPPED = tuple(rule for rule in Rule if Rule.BROKEN <= rule <= Rule.MASKED_ABOVE)


@dataclass(frozen=True)
class Stated:
    """A correction that a trainer says it applied in a step; `normalizer`: what it divided weights by, None: not known or not one."""

    config: CorrectionConfig
    normalizer: float | None


@dataclass(frozen=True, eq=False)
class Effect:
    """`weight_N`: what multiplies the token's loss, 0 where dropped, NaN where not trained on or not recorded. `rule_N`: values of `Rule`."""

    weight_N: Floats
    rule_N: NDArray[np.int8]


def stated(documents: Iterable[str]) -> Stated | None:
    """The one correction that the records of a step state; None: none, several, or none that can be computed.

    `documents`: as ``step_records.correction`` holds them.
    """
    parsed = [_parsed(document) for document in documents]
    known = [each for each in parsed if each is not None]
    if not known or len(known) < len(parsed) or len({each.config.fingerprint() for each in known}) > 1:
        return None
    normalizers = {each.normalizer for each in known}
    return Stated(known[0].config, normalizers.pop() if len(normalizers) == 1 else None)


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
    """What `config` does to a sequence; None where it is unknown: without tokens, one of the log-probs, or advantages it needs.

    `normalizer`: what the batch's weights were divided by; None: 1, and the weights are those before normalization.
    """
    advantages = tokens.advantage_N if np.isfinite(tokens.advantage_N[tokens.mask_N]).all() else None
    both = all(tokens.sides[name].known_N.any() for name in ("rollout", "trainer"))
    if not len(tokens) or not both or (config.needs_advantages and advantages is None):
        return None
    alone = config.replace(normalize=False)
    known_N = tokens.mask_N & tokens.sides["rollout"].known_N & tokens.sides["trainer"].known_N
    batch = batch_of(_logprobs(config, tokens), known_N[None], None if advantages is None else advantages[None])
    with np.errstate(invalid="ignore"):  # broken tokens are dropped, not warned about
        outcome = outcome_of(alone, tokens_of(alone, batch))
    weight_N = outcome.weights[0] / (normalizer or 1.0)
    return Effect(np.where(known_N, weight_N, np.nan), _rules(config, outcome))


def _logprobs(config: CorrectionConfig, tokens: Tokens) -> dict[str, Floats | None]:
    """Current log-probs only where the configuration looks at them: a broken one drops its token."""
    current = tokens.sides["current"]
    wanted = config.sequence_mask_delta is not None and current.known_N.all()
    return {
        "rollout_logprobs": tokens.sides["rollout"].values_N[None],
        "trainer_logprobs": tokens.sides["trainer"].values_N[None],
        "current_logprobs": current.values_N[None] if wanted else None,
    }


def _rules(config: CorrectionConfig, outcome: Outcome) -> NDArray[np.int8]:
    """[N]: rules from the last to apply to the first, each over what was there."""
    part = outcome.tokens
    masks = config.is_mode == "mask"
    hits = (
        (Rule.MASKED_ABOVE if masks else Rule.LIMITED_ABOVE, outcome.is_above),
        (Rule.MASKED_BELOW if masks else Rule.LIMITED_BELOW, outcome.is_below),
        (Rule.REJECTED_ABOVE, outcome.rs_above),
        (Rule.REJECTED_BELOW, outcome.rs_below),
        (Rule.OFF_POLICY, outcome.off_policy),
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
