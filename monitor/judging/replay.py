"""Check the trainer's replay of the engine's expert routes. Pure.

A trainer that chooses experts independently agrees on nearly all routes. A trainer that replays routes agrees on all.
If the replayed routes belong to other tokens, nearly none agree, and a shift within the same answer matches.

Dimensions: ``_N`` tokens of a trainer's record, ``_P`` tokens of one turn (a stretch that the engine sampled), ``_L``
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.routes import NO_ROUTE

Marks = NDArray[np.uint16]

EXACT: Final = 0.999  # of (token, layer) pairs; two sets of experts have one fingerprint once in 65,535
_OWN: Final = 0.995  # up to here a group is said to be without replay beside one that is exact
_FOUND: Final = 0.95  # of the pairs, at another place
_GAIN: Final = 0.2  # that a shift must bring
_LOST: Final = 0.7  # below: not the route of this token under any rounding
_FEWEST: Final = 200  # pairs that say anything
_LONGEST: Final = 256  # tokens of a turn in which a shift is looked for
_LAYERS: Final = 8  # in which a shift is looked for: all are shifted alike
_OVERLAP: Final = 6  # tokens that a shift must leave
_PADDED: Final = 4  # tokens
_SOME: Final = 0.05  # of the pairs


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one sequence: number of pairs (token, layer) with a route on both sides, and of equal ones.

    `shift`: distance in tokens of the trained routes, 0 for none. `padded`: true if the last routes are all equal, or
    missing.
    """

    rank: int | None
    number: int
    compared: int
    equal: int
    shift: int = 0
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A failing replay. `where`: its place in words. `kind`: "shift" | "turn" | "rank" | "padding" | "sequences"."""

    kind: str
    where: str
    shift: int | None


@dataclass(frozen=True)
class Replay:
    """Turns of a sample of sequences."""

    turns: tuple[Turn, ...] = ()

    @property
    def compared(self) -> int:
        """Pairs of a token and a layer with a route on both sides."""
        return sum(turn.compared for turn in self.turns)

    @property
    def agreement(self) -> float:
        """Share of the pairs whose trained route is the sampled one, NaN without any."""
        return _share(self.turns)

    @property
    def measured(self) -> bool:
        """True if there are enough pairs, or enough tokens with padding as the trained route."""
        return self.compared >= _FEWEST or sum(turn.padded for turn in self.turns) > 1

    @property
    def exact(self) -> bool:
        """True if every trained route is the sampled one."""
        return self.agreement >= EXACT and not self._padded

    @property
    def fault(self) -> Fault | None:
        """Fault of the replay, or None if the replay is exact or absent."""
        if not self.measured or self.exact:
            return None
        return self._of_ranks() or self._of_turns() or self._of_padding() or self._of_shifts() or self._of_some()

    @property
    def off(self) -> bool:
        """True if the trainer chooses experts independently."""
        return self.measured and not self.exact and self.fault is None

    def by(self, name: Callable[[Turn], Any]) -> dict[Any, float]:
        """Return the agreement by the value of `name` for each turn."""
        groups: dict[Any, list[Turn]] = {}
        for turn in self.turns:
            groups.setdefault(name(turn), []).append(turn)
        return {key: _share(turns) for key, turns in groups.items() if sum(turn.compared for turn in turns)}

    @property
    def _padded(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.padded]

    def _of_ranks(self) -> Fault | None:
        shares = {rank: share for rank, share in self.by(lambda turn: turn.rank).items() if rank is not None}
        wrong = sorted(rank for rank, share in shares.items() if share < _OWN)
        if (
            not wrong
            or not all(shares[rank] >= EXACT for rank in shares.keys() - set(wrong))
            or len(wrong) == len(shares)
        ):
            return None
        named = ", ".join(map(str, wrong))
        return Fault(
            "rank",
            f"on rank {named} and on no other" if len(wrong) == 1 else f"on ranks {named} alone",
            self._shift(wrong),
        )

    def _of_turns(self) -> Fault | None:
        shares = self.by(lambda turn: turn.number > 0)
        if shares.get(False, 0.0) >= EXACT and shares.get(True, 1.0) < _OWN:
            return Fault("turn", "from the second turn of a sequence on", None)
        return None

    def _of_padding(self) -> Fault | None:
        if len(self._padded) > _SOME * len(self.turns):
            return Fault(
                "padding",
                f"at the end of {len(self._padded) / len(self.turns):.0%} of the answers, where all trained routes are "
                "alike",
                None,
            )
        lost = self._lost
        shifts = {turn.shift for turn in lost if turn.shift}
        if len(shifts) > 1 and self._found(lost):
            return Fault("padding", "by a shift that differs between sequences, as padding does", None)
        return None

    def _of_shifts(self) -> Fault | None:
        lost = self._lost
        shift = self._shift()
        if shift is None or not self._found(lost):
            return None
        return Fault(
            "shift",
            f"by a constant shift: the trained routes are those of the token {abs(shift)} "
            f"{'later' if shift > 0 else 'earlier'}",
            shift,
        )

    def _of_some(self) -> Fault | None:
        exact = sum(turn.compared for turn in self.turns if turn.equal >= EXACT * turn.compared)
        lost = sum(turn.compared for turn in self.turns if turn.equal < _LOST * turn.compared)
        if min(exact, lost) < _SOME * self.compared:
            return None
        return Fault(
            "sequences",
            f"in {lost / self.compared:.0%} of what was compared, and exact in {exact / self.compared:.0%}",
            None,
        )

    @property
    def _lost(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.shift or turn.equal < _LOST * turn.compared]

    @staticmethod
    def _found(lost: Sequence[Turn]) -> bool:
        return sum(bool(turn.shift) for turn in lost) > len(lost) / 2

    def _shift(self, ranks: Sequence[int | None] | None = None) -> int | None:
        """Return the shift common to all shifted turns, or None."""
        shifts = {turn.shift for turn in self.turns if turn.shift and (ranks is None or turn.rank in ranks)}
        return shifts.pop() if len(shifts) == 1 else None


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Replay:
    """Build the replay from rows of ``diagnosis_routes``."""
    return Replay(tuple(turn for row in rows for turn in _turns(row)))


def _turns(row: Mapping[str, Any]) -> Iterator[Turn]:
    ids_N = np.asarray(row["token_ids"], np.int64)
    mask_N = np.ones(len(ids_N), np.bool_) if row["mask"] is None else np.asarray(row["mask"], np.bool_)
    theirs_ids = np.asarray(row["rollout_token_ids"], np.int64)
    ours_NL, theirs_ML = (
        _layered(row[name], count) for name, count in (("routes", len(ids_N)), ("rollout_routes", len(theirs_ids)))
    )
    if ours_NL is None or theirs_ML is None or ours_NL.shape[1] != theirs_ML.shape[1]:
        return
    for number, (places_P, theirs_P) in enumerate(_stretches(row, mask_N, len(theirs_ids))):
        if len(places_P) and np.array_equal(ids_N[places_P], theirs_ids[theirs_P]):
            yield turn_of(ours_NL[places_P], theirs_ML[theirs_P], rank=row["rank"], number=row["turn"] + number)


def _stretches(
    row: Mapping[str, Any], mask_N: NDArray[np.bool_], count: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the positions of the same tokens in both records, turn by turn. A turn is a stretch under the mask."""
    masked = np.flatnonzero(mask_N)
    if row["start"] is not None:
        places = masked[row["start"] : row["end"]]
        yield places, np.arange(len(places))
        return
    everything = count == len(mask_N)
    masked = masked if everything else masked[:count]
    for places in np.split(np.arange(len(masked)), np.flatnonzero(np.diff(masked) > 1) + 1):
        yield masked[places], masked[places] if everything else places


def turn_of(ours_PL: Marks, theirs_PL: Marks, *, rank: int | None, number: int) -> Turn:
    """Compare a turn's trained routes with its sampled ones."""
    known_PL = (ours_PL != NO_ROUTE) & (theirs_PL != NO_ROUTE)
    equal_PL = known_PL & (ours_PL == theirs_PL)
    compared, equal = int(known_PL.sum()), int(equal_PL.sum())
    wrong = equal < EXACT * compared
    return Turn(
        rank,
        number,
        compared,
        equal,
        _shift(ours_PL, theirs_PL, equal / max(compared, 1)) if wrong else 0,
        _ends_padded(ours_PL, theirs_PL),
    )


def _shift(ours_PL: Marks, theirs_PL: Marks, aligned: float) -> int:
    ours, theirs = (marks[:_LONGEST, :_LAYERS] for marks in (ours_PL, theirs_PL))
    count, best, best_shift = len(ours), max(_FOUND, aligned + _GAIN), 0
    for shift in sorted(range(_OVERLAP - count, count - _OVERLAP + 1), key=abs):
        first, second = ours[max(-shift, 0) : count - max(shift, 0)], theirs[max(shift, 0) : count - max(-shift, 0)]
        both_recorded = (first != NO_ROUTE) & (second != NO_ROUTE)
        share = float((both_recorded & (first == second)).sum()) / max(int(both_recorded.sum()), 1)
        if share > best:  # the smallest shift of several
            best, best_shift = share, shift
    return best_shift


def _ends_padded(ours_PL: Marks, theirs_PL: Marks) -> bool:
    """Return whether the last trained routes are all equal although the sampled ones differ."""
    alike = int(np.argmin([*(ours_PL[::-1] == ours_PL[-1]).all(axis=1).tolist(), False]))
    if alike < _PADDED:
        return False
    sampled = theirs_PL[-alike:]
    return bool((sampled != NO_ROUTE).any() and (sampled != sampled[-1]).any() and (sampled != ours_PL[-1]).any())


def _layered(routes: Any, tokens: int) -> Marks | None:
    marks = np.asarray(routes, np.uint16)
    return marks.reshape(tokens, -1) if tokens and len(marks) and len(marks) % tokens == 0 else None


def _share(turns: Sequence[Turn]) -> float:
    compared = sum(turn.compared for turn in turns)
    return sum(turn.equal for turn in turns) / compared if compared else float("nan")
