"""Rows by step that judgements need in addition to metrics: pair statistics, slices, and counts of the sources of r.

A slice sums the sequences of a step that are alike in their group columns.

Dimensions: ``_S`` training records that no later attempt has replaced, of all steps of a batch, ``_G`` steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.monitor import ragged
from logprobe.monitor.live.memory import Step
from logprobe.monitor.live.records import BY_PARTS, HAS, JOINED, MISSING, RECEIVED, UNALIGNED
from logprobe.monitor.live.rows import NONE
from logprobe.monitor.live.steps import ahead, engine_spans, orders, version_pieces
from logprobe.monitor.live.versions import Spans, known_spans
from logprobe.monitor.metrics.lag import Versions, is_number
from logprobe.monitor.metrics.sums import Groups, PairSums, StepSums

_PRODUCTS: Final = {
    "c_nn": ("n", "n"),
    "c_dd": ("sum_d", "sum_d"),
    "c_dn": ("sum_d", "n"),
    "c_aa": ("sum_abs_d", "sum_abs_d"),
    "c_an": ("sum_abs_d", "n"),
    "c_qq": ("sum_ratio_m1", "sum_ratio_m1"),
    "c_qn": ("sum_ratio_m1", "n"),
}
_SUMS: Final = {"d": "sum_d", "abs_d": "sum_abs_d", "k3": "sum_k3"}
_KIND: Final = {
    "version": pa.int64(),
    "replica": pa.string(),
    "cached": pa.bool_(),
    "in_flight": pa.bool_(),
    "lag": pa.int64(),
}
_PLACES: Final = {column.name: place for place, column in enumerate(COLUMN_SPECS)}
_Kind = tuple[int | None, str | None, bool | None, bool | None, int | None]
_UNKNOWN: Final = (None, None, None)  # version, in_flight, lag
_RARE: Final = math.log(1e-6)  # of an answer: of 1,000 groups of 8, one copy by chance in 36 steps at most
# Counts of tokens for the test of bit equality, as in the table ``step_summaries``.
BITS: Final = ("bits_compared", "bits_differing", "bits_unknown", "older_compared", "older_differing")


def pair_lists(steps: Sequence[Step], sums: StepSums) -> pa.ListArray:
    """Return the statistics of the measured pairs of each step [G], of type ``step_pair``."""
    of_pairs = [_of_pair(pair, sums.pair(pair)) for pair in PAIRS]
    places = np.concatenate([rows for rows, _ in of_pairs])
    table = pa.concat_tables([table for _, table in of_pairs])
    return _lists(table.take(pa.array(np.argsort(places, kind="stable"))), places, len(steps))


def _of_pair(pair: str, sums: PairSums) -> tuple[NDArray[np.intp], pa.Table]:
    rows = np.flatnonzero(sums.measured)
    valid = sums.n[rows] > 0
    columns: dict[str, Any] = {"pair": pa.repeat(pair, len(rows)), "compared": sums.compared[rows].astype(np.int64)}
    for column in COLUMN_SPECS:
        values = np.asarray(sums.tokens[column.name])[rows].astype(column.dtype)
        columns[column.name] = values if column.reduction == "sum" else pa.array(values, mask=~valid)
    for name, (one, other) in _PRODUCTS.items():
        columns[name] = sums.sequences.sum(sums.column(one) * sums.column(other))[rows]
    return rows, pa.table(columns)


def _lists(table: pa.Table, places: Any, count: int) -> pa.ListArray:
    """Return the rows of a table as one list per place [G]. The rows are sorted by place."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), ragged.one_array(table.to_struct_array()))


def slice_lists(steps: Sequence[Step]) -> tuple[pa.ListArray, Mapping[str, NDArray[np.int64]]]:
    """Return the slices of each step from `steps.step_sums` [G], of type ``step_slice``, and the `BITS` of each step.

    The order of the slices does not depend on the order of arrival.
    """
    of_runs = orders(steps)
    numbers, index = dict[tuple[int, _Kind], int](), list[int]()
    values, seen = list[NDArray[np.float64]](), list[NDArray[np.bool_]]()
    for place, step in enumerate(steps):
        rows = _measured(step)
        if len(rows):
            values.append(step.trained["backend"][rows])
            seen.append(_seen_at_both(step, rows))
            kinds = _Kinds(step, of_runs[step.run]).of(rows)
            index += [numbers.setdefault((place, kind), len(numbers)) for kind in kinds]
    known = sorted(numbers, key=_order)
    codes = np.empty(len(known), np.intp)
    codes[[numbers[slice_] for slice_ in known]] = np.arange(len(known))
    groups = Groups(codes[np.array(index, np.intp)], len(known))
    kinds_of = [dict(zip(_KIND, kind, strict=True)) for _, kind in known]
    table = pa.Table.from_pylist(kinds_of, pa.schema(_KIND))
    sums = np.concatenate(values) if values else np.empty((0, len(COLUMN_SPECS)))
    n, abs_d = sums[:, _PLACES["n"]], sums[:, _PLACES["sum_abs_d"]]
    table = table.append_column("sequences", pa.array(groups.count().astype(np.int64)))
    table = table.append_column("n", pa.array(groups.sum(n).astype(np.int64)))
    for name, column in _SUMS.items():
        table = table.append_column(name, pa.array(groups.sum(sums[:, _PLACES[column]])))
    for name, products in {"c_nn": n * n, "c_aa": abs_d * abs_d, "c_an": abs_d * n}.items():
        table = table.append_column(name, pa.array(groups.sum(products)))
    places = np.array([place for place, _ in known], np.intp)
    told = groups.sum(np.where(np.concatenate(seen), n, 0)) if seen else np.empty(0)
    differ = groups.sum(n - sums[:, _PLACES["n_zero_d"]])
    return _lists(table, places, len(steps)), _bits(kinds_of, Groups(places, len(steps)), told, differ)


def _seen_at_both(step: Step, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which records have both log-probs as recorded where they were computed, and not only exact zeros.

    Otherwise the trainer may have passed its own array as r. Received log-probs count if the engine's are equal.
    """
    trained = step.trained
    sums = trained["backend"][rows]
    blank = (sums[:, _PLACES["sum_behaviour2"]] == 0) & (sums[:, _PLACES["sum_policy2"]] == 0)
    seen: NDArray[np.bool_] = ((trained["source"][rows] == JOINED) | (trained["difference"][rows] == 0)) & ~blank
    return seen


def _bits(
    kinds: Sequence[Mapping[str, Any]], steps: Groups, told: NDArray[np.float64], differ: NDArray[np.float64]
) -> Mapping[str, NDArray[np.int64]]:
    """Return the `BITS` of each step [G] from tokens by slice: seen at both sides, and with two different log-probs."""
    lag = np.array([math.nan if kind["lag"] is None else kind["lag"] for kind in kinds], np.float64)
    flight = np.array([kind["in_flight"] is True for kind in kinds], np.bool_)
    own, unknown = (lag == 0) & ~flight, np.isnan(lag) & ~flight
    older = ~(own | unknown)
    columns = (told * ~older, differ * own, differ * unknown, told * older, differ * older)
    return {name: steps.sum(column).astype(np.int64) for name, column in zip(BITS, columns, strict=True)}


def _order(known: tuple[int, _Kind]) -> tuple[Any, ...]:
    place, kind = known
    return place, *((value is None, value if value is not None else 0) for value in kind)


def _measured(step: Step) -> NDArray[np.intp]:
    """Return the records that have a valid token and no later attempt."""
    if not len(step.trained):
        return np.empty(0, np.intp)
    return np.flatnonzero(
        step.counted_S & step.trained[HAS + "backend"] & (step.trained["backend"][:, _PLACES["n"]] > 0)
    )


class _Kinds:
    """Group columns of records of a step."""

    def __init__(self, step: Step, order: Versions) -> None:
        self._step, self._order = step, order
        self._known: dict[tuple[Spans | None, str | None], tuple[int | None, bool | None, int | None]] = {}

    def of(self, rows: NDArray[np.intp]) -> list[_Kind]:
        """Return the kinds of some records."""
        trained = self._step.trained
        requests = zip(self._requests(rows), self._spans(rows), trained["trainer_version"][rows].tolist(), strict=True)
        found = [(request, self._versions(spans, ours)) for request, spans, ours in requests]
        return [(version, *request, in_flight, lag) for request, (version, in_flight, lag) in found]

    def _requests(self, rows: NDArray[np.intp]) -> list[tuple[str | None, bool | None]]:
        """Return the replica and whether prompt tokens were cached, for records of several requests if they agree."""
        links, sampled = self._links(rows), self._step.run.sampled
        found = list[tuple[str | None, bool | None]]([(None, None)] * len(rows))
        if len(linked := np.flatnonzero(links >= 0)):
            replicas, cached = (sampled[name][links[linked]].tolist() for name in ("replica", "cached"))
            for place, replica, n in zip(linked.tolist(), replicas, cached, strict=True):
                found[place] = replica, None if n == NONE else n > 0
        for place, numbers in self._parts(rows):
            several = {sampled["replica"][number] for number in numbers}
            tokens = [int(sampled["cached"][number]) for number in numbers]
            replica = several.pop() if len(several) == 1 else None
            found[place] = replica, None if not tokens or NONE in tokens else max(tokens) > 0
        return found

    def _spans(self, rows: NDArray[np.intp]) -> list[Spans | None]:
        """Return the versions of the tokens, from the trainer where it states them."""
        step, links = self._step, self._links(rows)
        found = list[Spans | None]([None] * len(rows))
        if len(linked := np.flatnonzero(links >= 0)):
            known = linked[~ahead(step, rows[linked], links[linked])]
            for place, link in zip(known.tolist(), links[known].tolist(), strict=True):
                found[place] = step.run.spans[link]
        for place, _ in self._parts(rows):
            found[place], _ = engine_spans(step, rows[place])
        for place, stated in enumerate(step.trained["stated"][rows].tolist()):
            if stated is not None:
                found[place] = known_spans(version_pieces(step, rows[place]))
        return found

    def _links(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the only rollout record of each record, or −1."""
        trained = self._step.trained
        links: NDArray[np.int64] = np.where(trained["how"][rows] == BY_PARTS, -1, trained["link"][rows])
        return links

    def _parts(self, rows: NDArray[np.intp]) -> list[tuple[int, Sequence[int]]]:
        """Return the places of records joined from parts, with their rollout records."""
        places = np.flatnonzero(self._step.trained["how"][rows] == BY_PARTS).tolist()
        parts = [self._step.parts.get(int(rows[place])) for place in places]
        return [(place, () if some is None else some.numbers) for place, some in zip(places, parts, strict=True)]

    def _versions(self, spans: Spans | None, ours: str | None) -> tuple[int | None, bool | None, int | None]:
        if spans is not None and len(spans) == 1:
            spans = ((0, 0, spans[0][2]),)  # the number of tokens does not matter
        key = (spans, ours)
        if key not in self._known:
            self._known[key] = self._placed(*key)
        return self._known[key]

    def _placed(self, spans: Spans | None, ours: str | None) -> tuple[int | None, bool | None, int | None]:
        labels = {version for _, _, version in spans or ()}
        if not spans or None in labels:
            return _UNKNOWN
        in_flight, number = len(labels) > 1, self._mean(spans)
        trainer = self._number(ours)
        lag = None if number is None or trainer is None else math.floor(trainer - number + 0.5)
        return None if number is None else math.floor(number + 0.5), in_flight, lag

    def _mean(self, spans: Spans) -> float | None:
        """Return the mean version number of the tokens, or None if one is unknown."""
        numbers = [self._number(version) for _, _, version in spans]
        if len(numbers) == 1:
            return numbers[0]
        lengths = [end - start for start, end, _ in spans]
        if any(number is None for number in numbers) or not sum(lengths):
            return None
        return sum(n * length for n, length in zip(numbers, lengths, strict=True) if n is not None) / sum(lengths)

    def _number(self, label: str | None) -> float | None:
        """Return the number of a numeric label, or the rank of another label in its run."""
        if label is None:
            return None
        if is_number(label):
            return float(int(label))
        place = self._order.places.get(label)
        return None if place is None else float(place + 1)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts of one step, as in the table ``step_summaries``."""

    received: int = 0
    seen: int = 0
    missing: int = 0
    missing_tokens: int = 0
    unseen: int = 0
    unseen_tokens: int = 0
    unaligned: int = 0
    other_ids: int = 0
    routed: int = 0
    versions_compared: int = 0
    versions_differing: int = 0
    engine_older: int = 0
    engine_newer: int = 0
    grouped: int = 0
    copies: int = 0


COUNTS: Final = _Counted.__slots__


def counts(steps: Sequence[Step]) -> Mapping[str, NDArray[np.int64]]:
    """Return the counts of some steps by name [G]."""
    rows = [_counted(step) for step in steps]
    return {name: np.array([getattr(row, name) for row in rows], np.int64) for name in COUNTS}


def _counted(step: Step) -> _Counted:
    if not len(step.trained):
        return _Counted()
    counted, trained = step.counted_S, step.trained
    source, tokens = trained["source"][counted], trained["n_expected"][counted]
    seen = (trained["link"][counted] >= 0) | (trained["how"][counted] == BY_PARTS)
    missing = source == MISSING
    unseen = missing & ~seen
    return _Counted(
        received=int((source == RECEIVED).sum()),
        seen=int(seen.sum()),
        missing=int(missing.sum()),
        missing_tokens=int(tokens[missing].sum()),
        unseen=int(unseen.sum()),
        unseen_tokens=int(tokens[unseen].sum()),
        unaligned=int((source == UNALIGNED).sum()),
        other_ids=int((trained["token_match"][counted] == 0).sum()),
        routed=int((trained["layers"][counted] > 0).sum()),
        **_stated(step, np.flatnonzero(counted)[seen]),
        **_copies(step),
    )


def _copies(step: Step) -> dict[str, int]:
    """Return the number of sequences in groups of several answers to a prompt, and of copies of other answers in them.

    An answer counts as a copy only if both sides rate it less likely than `_RARE`, so that chance gives hardly any.
    """
    trained, sums = step.trained, step.trained["backend"]
    rows = _measured(step)
    rows = rows[sums[rows, _PLACES["n"]] == trained["n_expected"][rows]]
    rarest = np.maximum(sums[rows, _PLACES["sum_behaviour"]], sums[rows, _PLACES["sum_policy"]]) < _RARE
    prompts = step.run.sampled["prompt"] if len(step.run.sampled) else ()
    columns = (trained[name][rows].tolist() for name in ("link", "group", "sample", "token_hash"))
    answers: dict[str, dict[int | str, set[str]]] = {}
    for is_rare, link, of_group, name, tokens in zip(rarest.tolist(), *columns, strict=True):
        group = of_group or (prompts[link] if link >= 0 else None)
        if group is not None:
            answers.setdefault(group, {}).setdefault(tokens if is_rare else name, set()).add(name)
    several = [of_group for of_group in answers.values() if len(set().union(*of_group.values())) > 1]
    return {
        "grouped": sum(len(names) for of_group in several for names in of_group.values()),
        "copies": sum(len(names) - 1 for of_group in several for names in of_group.values()),
    }


def _stated(step: Step, rows: NDArray[np.intp]) -> dict[str, int]:
    """Return the number of tokens whose version engine and trainer both state, and the differences."""
    stated = [row for row in rows.tolist() if step.trained["stated"][row] is not None]
    found = [
        (piece.end - piece.start, piece.engine, piece.stated)
        for row in stated
        for piece in version_pieces(step, row)
        if piece.engine is not None and piece.stated is not None
    ]
    ahead = [
        (tokens, int(engine) - int(said)) for tokens, engine, said in found if is_number(engine) and is_number(said)
    ]
    return {
        "versions_compared": sum(tokens for tokens, _, _ in found),
        "versions_differing": sum(tokens for tokens, engine, said in found if engine != said),
        "engine_older": sum(tokens for tokens, by in ahead if by < 0),
        "engine_newer": sum(tokens for tokens, by in ahead if by > 0),
    }
