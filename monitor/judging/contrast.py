"""Test "contrast": tokens that differ in one group column, compared within one step and weight lag.

`where` searches all recorded group columns for the place that holds most of K3 in few tokens. `contrasts` names the
causes that have their own column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.course import shape as shape_of
from logprobe.monitor.judging.course import short_rise
from logprobe.monitor.judging.frame import Bools, Frame, Strata
from logprobe.monitor.judging.judgement import GROWS, Confidence, Finding, Place
from logprobe.monitor.judging.level import far
from logprobe.monitor.judging.measures import SIGNIFICANT, Floats, Mean, difference
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.judging.thresholds import number

Mask = Callable[[Strata], Bools]


@dataclass(frozen=True, slots=True)
class Contrast:
    """Difference between two groups of the same steps and lags.

    Attributes:
        value: relative excess of K3 over that of the others, NaN if no step has both.
        z: difference of K3 or of |d|, the clearer one, in standard errors over steps.
        steps: number of steps with both groups.
        least: lower end of the interval of `value`, or that of the excess of mean |d| if it is larger.
    """

    value: float
    z: float
    steps: int
    least: float = 0.0


_NONE = Contrast(math.nan, 0.0, 0)


def contrast(worse: Strata, better: Strata) -> Contrast:
    """Compare two groups step by step, or as a whole if a short run has too few steps."""
    steps = np.intersect1d(worse.steps, better.steps)
    if len(steps) < number("paired_steps"):
        return _unpaired(worse, better)
    k3, abs_d = (_over(worse, better, steps, sums) for sums in ("sum_k3", "sum_abs_d"))
    sure = max(k3.value - 2 * k3.error, (1 + abs_d.value - 2 * abs_d.error) ** 2 - 1)
    return Contrast(k3.value, max(k3.z, abs_d.z), len(steps), min(sure, k3.value))


def _over(worse: Strata, better: Strata, steps: NDArray[np.int64], sums: str) -> Mean:
    high, low = worse.by_step(steps, sums), better.by_step(steps, sums)
    over = (high - low) / max(float(low.mean()), number("visible_k3"))  # others may agree bit by bit
    return Mean(float(over.mean()), float(over.std(ddof=1)) / math.sqrt(len(over)), len(over))


def _unpaired(worse: Strata, better: Strata) -> Contrast:
    if min(worse.n, better.n) < number("fewest"):
        return _NONE
    if not worse.abs_d.value > number("unpaired_ratio") * better.abs_d.value:
        return _NONE
    over = worse.k3 / max(better.k3, number("visible_k3")) - 1
    return Contrast(over, difference(worse.abs_d, better.abs_d), 1, over)


@dataclass(eq=False)
class Rest:
    """Mismatch of today, and of the whole run, that is not explained by any finding yet.

    Attributes:
        frame: columns of the run.
        first: rows of the beginning.
        now: rows of today.
        all: rows of every step.
        total: sum of K3 of today, explained or not.
    """

    frame: Frame
    first: Strata = field(init=False)
    now: Strata = field(init=False)
    all: Strata = field(init=False)
    total: float = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.now, self.all = self.frame.first, self.frame.now, self.frame.strata
        self.total = max(float(self.now.sum_k3.sum()), 1e-300)

    def take(self, worse: Mask, better: Mask, over: float = 0.0) -> float:
        """Remove the rows of a finding. Return its share of today's K3, at least that of an excess of `over` times the
        others' K3.
        """
        here, n = worse(self.now), max(self.now.n, 1)
        n_here = self.now.where(here).n
        least = over * n_here / (n + over * n_here) * float(self.now.sum_k3.sum())
        share = max(_excess(self.now, here, better(self.now)), least) / self.total
        self.first, self.now, self.all = (rows.where(~worse(rows)) for rows in (self.first, self.now, self.all))
        return share


def _excess(now: Strata, worse: Bools, better: Bools) -> float:
    """Return the K3 of `worse` beyond that of as many tokens of `better` at the same lag."""
    over = 0.0
    for lag in np.unique(now.lag[worse]).tolist():
        at = np.isnan(now.lag) if math.isnan(lag) else now.lag == lag
        others = now.where(better & at)
        others = others if others.n >= number("fewest") else now.where(better)
        here = now.where(worse & at)
        over += max(0.0, float(here.sum_k3.sum()) - (others.k3 * here.n if others.n else 0.0))
    return over


# ------------------------------------------------------------------------------------------------ causes


def contrasts(frame: Frame, rest: Rest) -> list[Finding]:
    """Name the causes whose column separates high K3 from low, the clearest first. Remove the rows of each."""
    found: list[Finding] = []
    while True:
        best: tuple[float, str, Contrast, Mask, Mask, object] | None = None
        today: dict[tuple[str, object], Contrast] = {}
        for cause, worse, better, value in _candidates(rest.now):
            if cause in {finding.cause for finding in found} or not _may_be(frame, cause):
                continue
            for window in (rest.now, rest.all):
                rows = window if cause == "inflight_stale_kv" else window.alike
                c = contrast(rows.where(worse(rows)), rows.where(better(rows)))
                today.setdefault((cause, value), c)
                clear = c.z > SIGNIFICANT and _is_told(frame, cause, c, rows.where(worse(rows)))
                if clear and rest.now.k3 > number("visible_k3") and (best is None or c.z * c.value > best[0]):
                    best = (c.z * c.value, cause, c, worse, better, value)
        if best is None:
            return found
        _, cause, c, worse, better, value = best
        # A few tokens decide K3 of few steps. What is as clear today as before holds what it held of all steps.
        lasts = today[cause, value].z > SIGNIFICANT and frame.growth.verdict not in GROWS
        share = rest.take(worse, better, c.value if lasts else 0.0)
        since = _since(frame, worse, better)
        evidence: dict[str, object] = {"over_others": c.value, "z": c.z, "steps": c.steps}
        if cause == "replica_divergence":
            evidence["replica"] = value
        sure = Confidence.KNOWN if recorded(frame, cause) else Confidence.INFERRED
        found.append(Finding(cause, sure, since, share, evidence=evidence))


def _is_told(frame: Frame, cause: str, c: Contrast, worse: Strata) -> bool:
    """Return whether a contrast is large enough. Within the range of the setup, other hardware explains a small one."""
    if recorded(frame, cause) or worse.k3 > far(frame):
        return c.value > number("material")
    return c.least > number("contrast_least")


def _may_be(frame: Frame, cause: str) -> bool:
    """Return whether tokens after a weight update differ, as stale keys and values affect no others, or cannot tell."""
    tokens = frame.tokens
    if cause != "inflight_stale_kv" or tokens is None or not np.isfinite(tokens.lag).any():
        return True
    known = tokens.where(np.isfinite(tokens.lag))
    size = int(known.sequence.max()) + 1
    newest, oldest = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(newest, known.sequence, known.lag)
    np.maximum.at(oldest, known.sequence, known.lag)
    crosses = (newest < oldest)[known.sequence]
    after = known.where(crosses & (known.lag == newest[known.sequence]))
    others = known.where(~crosses & np.isin(known.lag, after.lag))
    if min(len(after), len(others)) < number("fewest"):
        return True
    return float(after.k3.mean()) > (1 + number("material")) * float(others.k3.mean())


def recorded(frame: Frame, cause: str) -> bool:
    """Return whether most recorded weight updates kept the state that the cause concerns."""
    if cause == "stale_prefix_cache":
        return frame.weights.kept_cache > number("most")
    keep = [record.pause_mode == "keep" and not record.cache_cleared for record in frame.weights.updates]
    return cause == "inflight_stale_kv" and sum(keep) > number("most") * len(keep)


def _candidates(now: Strata) -> Iterator[tuple[str, Mask, Mask, object]]:
    """Yield causes with a mask of the affected rows, a mask of the rows for comparison, and the separating value."""
    for row in SIGNATURES.values():
        for value in _values(now, row.column) if row.column in now.groups else ():
            yield row.cause, _has(row.column, value), _has_another(row.column, value), value


def _values(now: Strata, column: str) -> list[object]:
    values = now.groups[column].present
    if set(values) <= {True, False}:
        return [True]
    return sorted(values, key=str) if len(values) > 1 else []


def _has(column: str, value: object) -> Mask:
    return lambda rows: rows.is_value(column, value)


def _has_another(column: str, value: object) -> Mask:
    return lambda rows: rows.known(column) & ~rows.is_value(column, value)


def _since(frame: Frame, worse: Mask, better: Mask) -> int | None:
    """Return the first step if the beginning already differs, else the step at which K3 left its level, or None."""
    first = frame.first
    c = contrast(first.where(worse(first)), first.where(better(first)))
    if c.z > SIGNIFICANT and c.value > number("material"):
        return frame.start
    if frame.growth.since_step is not None:
        return frame.growth.since_step
    return _left(frame.strata.where(worse(frame.strata)))


# ------------------------------------------------------------------------------------------------ places


def where(frame: Frame) -> Place | None:
    """Return the place that holds most of today's K3 in few tokens, or None if the mismatch is spread.

    All group columns of all tables are searched, over today's steps and over all steps. Values are chosen on even steps
    and tested on odd ones, to avoid selection bias.
    """
    places = []
    uneven = (table.strata for table in frame.places if table.uneven or table.within(frame.now.steps).uneven)
    for table in (frame.strata, *uneven):
        for window in (table.within(frame.now.steps), table):
            place = _place(window, table)
            if place is not None and not _is_over(table.within(frame.now.steps).alike, place):
                places.append(place)
    return max(places, key=_plainness, default=None)


def _is_over(today: Strata, place: Place) -> bool:
    """Return whether today's tokens suffice to show that the place no longer differs."""
    inside = _in(today, place.columns)
    here, others = today.where(inside), today.where(~inside)
    return min(here.n, others.n) >= number("fewest") and here.k3 < number("place_ratio") * others.k3


def grew_at(frame: Frame) -> Place | None:
    """Return the place in which K3 grew, or None if it grew among all tokens.

    Drifting policies and missing weight updates affect tokens of every group.
    """
    since = frame.growth.since_step
    if since is None:
        return None
    places = []
    for table in (frame.strata, *(table.strata for table in frame.places)):
        rows = table.alike
        before, now = rows.where(rows.step < since), rows.where(rows.step >= since)
        for column in rows.groups if min(before.n, now.n) >= number("fewest") else ():
            place = _grown_place(before, now, column, since)
            if place is not None:
                places.append(place)
    return max(places, key=_plainness, default=None)


def _grown_place(before: Strata, now: Strata, column: str, since: int) -> Place | None:
    """Return the values of one column whose K3 grew while that of the other values did not."""
    size = len(now.groups[column].values)

    def sums(rows: Strata) -> tuple[Floats, Floats]:
        keep = rows.known(column)
        codes = rows.groups[column].codes[keep]
        n: Floats = np.bincount(codes, rows.tokens[keep], size).astype(np.float64)
        k3: Floats = np.bincount(codes, rows.sum_k3[keep], size).astype(np.float64)
        return n, k3

    (n0, k0), (n1, k1) = sums(before), sums(now)
    both = (n0 > 0) & (n1 > 0)
    if np.count_nonzero(both) < 2:  # noqa: PLR2004 - one group has nothing to differ from
        return None
    rate0, rate1 = k0 / np.maximum(n0, 1), k1 / np.maximum(n1, 1)
    grew = both & (rate1 > number("growth_ratio") * rate0)
    still = both & ~grew
    values = tuple(now.groups[column].values[code] for code in np.flatnonzero(grew).tolist())
    inside, outside = (now.where(now.groups[column].isin(names)) for names in (values, _others(now, column, still)))
    tokens = inside.n / max(inside.n + outside.n, 1)
    if not values or min(inside.n, outside.n) < number("fewest") or tokens > number("place_wide"):
        return None
    rise = k1[still].sum() / n1[still].sum() / max(k0[still].sum() / n0[still].sum(), number("least_k3"))
    steep = inside.k3 / max(float(k0[grew].sum() / n0[grew].sum()), number("least_k3"))
    z = contrast(inside, outside).z
    if rise > number("grown_ratio") or steep < number("growth_ratio") * rise or not z > SIGNIFICANT:
        return None
    share = 1 - outside.k3 * outside.n / max(float(inside.sum_k3.sum() + outside.sum_k3.sum()), 1e-300)
    return Place({column: values}, share, tokens, inside.k3, outside.k3, z, since)


def _others(rows: Strata, column: str, still: Bools) -> tuple[object, ...]:
    return tuple(rows.groups[column].values[code] for code in np.flatnonzero(still).tolist())


def _plainness(place: Place) -> float:
    """Return the score of a place: its share of K3 less its share of tokens, with a penalty per column and value."""
    values = sum(map(len, place.columns.values()))
    narrowness = place.share - place.tokens
    return narrowness - number("finer_place") * (len(place.columns) - 1) - number("place_value") * values


def _place(window: Strata, whole: Strata) -> Place | None:
    """Return the narrowest place of one table, by one column or by one column within another."""
    places = []
    for column in window.groups:
        found = _by_column(window, column, {})
        if found is None:
            continue
        finer = [_by_column(window, other, found.columns) for other in window.groups if other != column]
        places += [found, *(place for place in finer if place is not None)]
    best = max(places, key=_plainness, default=None)
    return None if best is None else replace(best, since=_place_since(whole, best.columns))


def _by_column(window: Strata, column: str, within: Mapping[str, tuple[object, ...]]) -> Place | None:
    """Return the values of a column with most of K3 in few tokens, or nearly all of K3 in at most half."""
    few = _of_values(window, column, within, number("place_lift"))
    if few is not None and few.tokens <= number("place_tokens"):
        return few
    most = _of_values(window, column, within, number("place_wide_lift"))
    if most is None or most.share < number("place_nearly_all") or most.tokens > number("place_wide"):
        return None
    return most


def _of_values(window: Strata, column: str, within: Mapping[str, tuple[object, ...]], lift: float) -> Place | None:
    """Return the values of a column whose K3 is a multiple of the mean, if they hold most of it on unseen steps, too.

    Only steps with both kinds of tokens count, since a column that only separates steps names no place. The place is
    found among tokens of one lag. If these are too few to prove it, tokens of all lags are tested.
    """
    rows = window.alike
    usable = _in(rows, within) & rows.known(column)
    even = usable & (rows.step % 2 == 0)
    values = _high(rows, column, even if even.any() else usable, lift)
    if not values:
        return None
    columns = {**within, column: values}
    inside = _in(rows, columns)
    outside = ~inside & (rows.known(column) | _known(rows, within))
    both = np.isin(rows.step, np.intersect1d(rows.step[inside], rows.step[outside]))
    odd = both & (rows.step % 2 == 1)
    test = odd if (inside & odd).any() else both
    share, tokens = _shares(rows, inside, outside)
    if min(share, _shares(rows, inside & test, outside & test)[0]) < number("place_share"):
        return None
    k3, others = rows.where(inside).k3, rows.where(outside).k3
    if k3 < number("place_ratio") * others:
        return None
    z = contrast(rows.where(inside & test), rows.where(outside & test)).z
    if not z > SIGNIFICANT and rows is not window:
        z = _of_all_lags(window, columns, within, column)
    return Place(columns, share, tokens, k3, others, z) if z > SIGNIFICANT else None


def _of_all_lags(
    window: Strata, columns: Mapping[str, tuple[object, ...]], within: Mapping[str, tuple[object, ...]], column: str
) -> float:
    """Return the difference of a place from the others among tokens of all lags, in standard errors."""
    inside = _in(window, columns)
    outside = ~inside & (window.known(column) | _known(window, within))
    if not window.where(inside).k3 > number("place_ratio") * window.where(outside).k3:
        return 0.0
    return contrast(window.where(inside), window.where(outside)).z


def _shares(rows: Strata, inside: Bools, outside: Bools) -> tuple[float, float]:
    """Return the shares of K3 and of tokens inside, or 0 and 1 if either part is empty."""
    part, rest = rows.where(inside), rows.where(outside)
    if not part.n or not rest.n:
        return 0.0, 1.0
    k3 = float(part.sum_k3.sum())
    return k3 / max(k3 + float(rest.sum_k3.sum()), 1e-300), part.n / (part.n + rest.n)


def _known(rows: Strata, columns: Mapping[str, tuple[object, ...]]) -> Bools:
    keep = np.zeros(len(rows.step), np.bool_)
    for column in columns:
        keep |= rows.known(column)
    return keep


def _high(rows: Strata, column: str, usable: Bools, lift: float) -> tuple[object, ...]:
    """Return the values of a column whose K3 is a multiple of the mean."""
    group = rows.groups[column]
    codes, size = group.codes[usable], len(group.values)
    n, k3 = np.bincount(codes, rows.tokens[usable], size), np.bincount(codes, rows.sum_k3[usable], size)
    if np.count_nonzero(n) < 2:  # noqa: PLR2004 - one group has nothing to differ from
        return ()
    high = np.flatnonzero((n > 0) & (k3 > lift * k3.sum() / n.sum() * n))
    return tuple(sorted((group.values[code] for code in high.tolist()), key=lambda v: (isinstance(v, str), v)))


def _in(rows: Strata, columns: Mapping[str, tuple[object, ...]]) -> Bools:
    keep = np.ones(len(rows.step), np.bool_)
    for column, values in columns.items():
        keep &= rows.groups[column].isin(values)
    return keep


def _place_since(table: Strata, columns: Mapping[str, tuple[object, ...]]) -> int | None:
    """Return the step at which K3 of the place left its level, the first step if it always differed, or None if too few
    steps tell.
    """
    inside = _in(table, columns)
    rows, others = table.where(inside), table.where(~inside)
    begin = rows.steps[: max(len(rows.steps) // 4, 1)]
    if rows.within(begin).k3 > number("place_ratio") * others.within(begin).k3:
        return int(rows.steps[0])
    return _left(rows)


def _left(rows: Strata) -> int | None:
    """Return the step at which K3 left its level, the first step without such a one, or None if too few steps tell."""
    shape = shape_of(rows)
    if shape is None:
        return short_rise(rows)
    return shape.step if shape.step is not None else int(rows.steps[0])
