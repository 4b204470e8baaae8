"""Who departs from whom, decided from the gaps between scorings. Pure.

    r ── state ── r′ ── engine ── q(rollout's weights) ── age ── q(trainer's weights) ── trainer ── t

Each gap along this chain belongs to one culprit; those above the noise floor depart, the largest first. An engine's state is not what is
left when nothing else is known: it is called so where the gap looks like one, or where an experiment made the same gap on purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from logprobe.monitor.proof.paired import Gap
from logprobe.monitor.proof.patterns import Pattern

Departs = Literal["engine_state", "engine", "trainer", "policy_age", "none", "unknown"]
LEGS: Final[tuple[Departs, ...]] = ("engine_state", "engine", "policy_age", "trainer")
# K3 that float32 implementations reach among themselves: 2.4e-6 at 0.5 B parameters (Fast-LLM PR 525).
FLOOR: Final = 3e-6
_BROKEN: Final = 0.01  # share of tokens that only one of two scorers gives a probability
_CHAIN: Final = 4.0  # a gap is explained where some leg has a quarter of it
_FOREIGN: Final = 0.1  # of either side's gap; r and t that are so much nearer to each other are of something else
FOREIGN: Final = (
    "r and t agree with each other and with no scorer: "
    "this sample's temperature, settings or checkpoint are not the run's"
)


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
    """Whether a gap is more than noise: on average over sequences, or in a few of them that are far beyond the others."""
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
    """Who departs.

    Args:
        legs: gap of each leg of the chain; None: not measured.
        whole: between r and t; None: not measured.
        floor: K3 that counts as agreement.
        state: what the gap between r and a fresh engine looks like; None: nobody looked.
        reproduced: sides whose gap an experiment made on purpose.
        unsure: what of the engine's settings could not be repeated; None: nothing.
    """
    off = sorted((leg for leg in LEGS if above(legs.get(leg), floor)), key=lambda leg: -_size(legs[leg]))
    missing = [leg for leg in LEGS if legs.get(leg) is None and leg != "policy_age"]
    if not off:
        return _quiet(legs, whole, floor, missing)
    if _foreign(whole, legs, off):
        return Decision("unknown", (), FOREIGN)
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
    """Nobody departs, as far as that was measured."""
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
    """Whether the sample is of something else than what scores it: r and t are much nearer to each other than to their own scorers."""
    if whole is None:
        return False
    if whole.abs_diff_mean == 0 and not whole.broken:  # no two implementations agree in every bit
        return True
    state, trainer = legs.get("engine_state"), legs.get("trainer")
    if state is None or trainer is None or not {"engine_state", "trainer"} <= set(off):
        return False
    return _size(whole) < _FOREIGN * min(_size(state), _size(trainer))


def _doubt(state: Pattern | None, unsure: str | None) -> str | None:
    """Why a gap between r and a fresh engine may be something else than the engine's state."""
    if state is None or (state.of_state and unsure is None):
        return None
    if state.sign:
        return (
            "all log-ratios have one sign, as where top-p, top-k, min-p or a grammar was in use that the sample does not name; "
            "no state of an engine does that"
        )
    if state.temperature is not None:
        return f"as at a temperature {state.temperature:.2f} times the sample's, which no state of an engine does"
    if unsure is not None:
        return f"its state, or what could not be repeated: {unsure}"
    return "in all sequences and from their first token on: its state, its weights, or a setting that was not recorded"


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
