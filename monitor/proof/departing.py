"""Who departs from whom, decided from the gaps between scorings. Pure.

    r ── state ── r′ ── engine ── q(rollout's weights) ── age ── q(trainer's weights) ── trainer ── t

Each gap along this chain belongs to one culprit; those above the noise floor depart, the largest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from logprobe.monitor.proof.paired import Gap

Departs = Literal["engine_state", "engine", "trainer", "policy_age", "none", "unknown"]
LEGS: Final[tuple[Departs, ...]] = ("engine_state", "engine", "policy_age", "trainer")
# K3 that float32 implementations reach among themselves: 2.4e-6 at 0.5 B parameters (Fast-LLM PR 525).
FLOOR: Final = 3e-6
_BROKEN: Final = 0.01  # share of tokens that only one of two scorers gives a probability
_CHAIN: Final = 4.0  # a gap is explained where some leg has a quarter of it


@dataclass(frozen=True, slots=True)
class Decision:
    """`departs`: the culprit of the largest gap; `departs_all`: all of them; `why`: in one sentence."""

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
    """Whether a gap is more than noise."""
    if gap is None:
        return False
    low = gap.k3 if gap.interval is None else gap.interval[0]
    return gap.broken > _BROKEN or (gap.k3 > floor and low > floor / _CHAIN)


def decide(legs: Mapping[Departs, Gap | None], whole: Gap | None, *, floor: float = FLOOR) -> Decision:
    """Who departs.

    Args:
        legs: gap of each leg of the chain; None: not measured.
        whole: between r and t; None: not measured.
        floor: K3 that counts as agreement.
    """
    off = sorted((leg for leg in LEGS if above(legs.get(leg), floor)), key=lambda leg: -_size(legs[leg]))
    if off and not _unexplained(whole, off, legs, floor):
        return Decision(off[0], tuple(off), "; ".join(_WORDS[leg] for leg in off))
    missing = [leg for leg in LEGS if legs.get(leg) is None and leg != "policy_age"]
    if off:
        return Decision(
            "unknown",
            tuple(off),
            f"{_WORDS[off[0]]}, which explains less than a quarter of the gap between r and t"
            + (f"; not measured: {', '.join(missing)}" if missing else ""),
        )
    if above(whole, floor):
        return Decision("unknown", (), f"r and t differ; not measured: {', '.join(missing) or 'nothing'}")
    if len(missing) == len(LEGS) - 1:
        return Decision("unknown", (), "nothing could be compared")
    unseen = [leg for leg in ("engine", "trainer") if leg in missing]
    if whole is None and unseen:  # the others say nothing of a side that was compared with none of them
        return Decision("unknown", (), f"no departure found; not measured: {', '.join(missing)}, nor r against t")
    return Decision("none", (), "every scorer agrees within the noise floor: nothing to find")


def _unexplained(whole: Gap | None, off: list[Departs], legs: Mapping[Departs, Gap | None], floor: float) -> bool:
    """Whether a leg is missing and those that were measured are far too small for the gap."""
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
