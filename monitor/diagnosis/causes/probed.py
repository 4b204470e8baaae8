"""What the live probe proves: the same engine, weights and tokens, and another answer once its state is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from logprobe.monitor.diagnosis.causes.cause import KNOWN, Sign
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.probes import Probed, middle
from logprobe.monitor.diagnosis.levels import expected, traits_of

_FEWEST: Final = 50  # tokens
_TIMES: Final = 10.0  # as far as the others: the cache is what differs
_KEPT: Final = 0.5  # share of updates


def stale_prefix_cache(evidence: Evidence) -> Sign | None:
    """Only sequences with cached prompt tokens are not confirmed; or all have some, and updates left the cache as it
    was."""
    bad = _bad(evidence)
    cached, uncached = middle([look.cached_k3 for look in bad]), middle([look.uncached_k3 for look in bad])
    if cached is None or (uncached is None and not evidence.weights.kept_cache > _KEPT):
        return None
    if uncached is not None and cached < _TIMES * uncached:
        return None
    others = "" if uncached is None else f" and {uncached:.2g} for those without"
    return _sign(
        evidence,
        bad,
        f"K3 is {cached:.2g} for requests with cached prompt tokens{others}: the prefix cache holds keys and values of "
        "older weights.",
    )


def engine_state(evidence: Evidence) -> Sign | None:
    """The running engine does not confirm what it reported, and it is not the prefix cache alone."""
    bad = _bad(evidence)
    if not bad or stale_prefix_cache(evidence) is not None:
        return None
    words = (
        "It is neither its settings nor its weights, nor that the policy moved on: what differs is its state (KV "
        "cache, prefix cache, batch)."
    )
    return _sign(evidence, bad, words)


def _bad(evidence: Evidence) -> Sequence[Probed]:
    """Looks beyond what rounding makes in this setup."""
    traits = traits_of(evidence)
    bad = evidence.probes.bad(expected(replace(traits, trainer=traits.engine))[1])  # the engine is on both sides
    return bad if sum(look.tokens for look in bad) >= _FEWEST else ()


def _sign(evidence: Evidence, bad: Sequence[Probed], words: str) -> Sign:
    k3 = middle([look.k3 for look in bad]) or 0.0
    whole = evidence.gap.k3
    return Sign(
        KNOWN,
        k3 / whole if whole > k3 else 1.0,
        {
            "probe_k3": k3,
            "probe_cached_k3": middle([look.cached_k3 for look in bad]),
            "probe_uncached_k3": middle([look.uncached_k3 for look in bad]),
            "probe_tokens": sum(look.tokens for look in bad),
        },
        "The running engine scored its own sequences again, past its caches and with the same weights, and differs "
        "from what it reported by a K3 of "
        f"{k3:.2g}. {words}",
        since_step=bad[0].step,
    )
