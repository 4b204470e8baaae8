"""Link each training record to its rollout record and compare the two.

Linking by the sample's name prefers, of several records, those with the same tokens, then those of a fitting length.
Otherwise the newest record before the training record is linked, or the earliest one after it. If several earlier
records have the same tokens but other log-probs or versions, the log-probs received by the trainer decide. If these
decide nothing, no record is linked.

Linking by tokens applies in a run in which no name has matched up to a step. A rollout record with the same tokens is
linked if it is the only one and no other sample has these tokens.

See `trajectories` for a sequence of several engine requests.

Dimensions: ``_S`` records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import ENGINE_PAIRS
from logprobe.monitor import ragged
from logprobe.monitor.live.memory import Memory, Run, Step, begun
from logprobe.monitor.live.records import (
    ALIGNMENTS,
    AMBIGUOUS,
    BY_ID,
    BY_PARTS,
    BY_TOKENS,
    HAS,
    JOINED,
    MISSING,
    RECEIVED,
    UNALIGNED,
    UNLINKED,
    Columns,
    codes,
    statistics_of,
)
from logprobe.monitor.live.rows import NONE
from logprobe.monitor.live.sequence_rows import (
    ROUTE_COLUMNS,
    align,
    joined_statistics,
    no_routes,
    received_differences,
    route_counts,
    source_logprobs,
)
from logprobe.monitor.live.trajectories import Parts, ambiguous_parts, choose_parts, place_parts

CLOCK: Final = 10_000_000  # microseconds by which clocks of machines may differ
TOKENS_PER_BATCH: Final = 4_000_000  # of both sides; some 25 bytes each while a batch is worked on
SAME_VALUE: Final = 1e-4  # of a log-prob on its way to the trainer: rounded to text, not computed again
FEWEST_TOKENS: Final = 8  # shorter answers are often alike
STEPS_BACK: Final = 16  # a sequence was sampled after the training of the step so many before
_LAYERS_OF_A_TOKEN: Final = 8  # so many layers take the memory of a token's log-probs, ids and masks
_THEIRS: Final = pa.schema(
    [("token_ids", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32())), ("routes", pa.list_(pa.uint16()))]
)


@dataclass(slots=True)
class _Choices:
    """Links of the records of a step [S]: the method, and the number of the rollout record or −1.

    `counted_S`: mask of the records that no later attempt has replaced. `several`: row → candidates that match equally
    well. `parts`: row → records of the requests that sampled it.
    """

    how_S: NDArray[np.int8]
    link_S: NDArray[np.int64]
    counted_S: NDArray[np.bool_]
    several: dict[int, Sequence[int]] = field(default_factory=dict)
    parts: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Return whether a record was linked by name."""
        return bool((((self.how_S == BY_ID) | (self.how_S == BY_PARTS)) & self.counted_S).any())

    def choose(self, row: int, how: int, link: int = -1) -> None:
        """Set the link of a row."""
        self.how_S[row], self.link_S[row] = how, link


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Training records of a step [P] with their rollout records, or with records made of `parts`."""

    step: Step
    rows_P: NDArray[np.intp]
    links_P: NDArray[np.int64]
    parts: Sequence[Parts] = ()

    def __len__(self) -> int:
        return len(self.rows_P)

    def ours(self, name: str) -> NDArray[Any]:
        """Return a column of the training records [P]."""
        column: NDArray[Any] = self.step.trained[name][self.rows_P]
        return column

    def theirs(self, name: str) -> NDArray[Any]:
        """Return a column of the rollout records [P]."""
        column: NDArray[Any] = self.step.run.sampled[name][self.links_P]
        return column

    def only(self, keep_P: NDArray[np.bool_]) -> _Pairs:
        """Return the selected pairs."""
        parts = [made for made, keep in zip(self.parts, keep_P.tolist(), strict=False) if keep]
        return _Pairs(self.step, self.rows_P[keep_P], self.links_P[keep_P], parts)

    @property
    def with_routes_P(self) -> NDArray[np.bool_]:
        """Mask of the pairs whose records both have routes."""
        if self.parts:
            return np.zeros(len(self), np.bool_)
        return np.asarray((self.ours("layers") > 0) & (self.theirs("layers") > 0))

    @property
    def tokens_P(self) -> NDArray[np.int64]:
        """Number of tokens of both sides, increased for pairs with routes."""
        if self.parts:
            return np.asarray(2 * self.ours("n_total"))
        layers = np.where(self.with_routes_P, self.ours("layers") + self.theirs("layers"), 0)
        return np.asarray((self.ours("n_total") + self.theirs("n_tokens")) * (1 + layers // _LAYERS_OF_A_TOKEN))


Wanted = dict[Step, _Choices]


def link(memory: Memory, steps: Sequence[Step], runs: Iterable[Run]) -> list[Step]:
    """Link all training records of some steps; return these steps and others whose links changed.

    `runs`: runs with news.
    """
    wanted = {step: _choices(step) for step in steps}
    for run in runs:
        _by_tokens(run, wanted)
    _settle_several(memory, wanted)
    _apply(memory, wanted)
    return list(wanted)


def _choices(step: Step) -> _Choices:
    """Return the links of a step by name, or by parts."""
    run, rows = step.run, step.trained
    size = len(rows)
    choices = _Choices(np.full(size, UNLINKED, np.int8), np.full(size, -1, np.int64), step.counted_S)
    if not size or not len(run.sampled):
        return choices
    samples, parts = rows["sample"].tolist(), rows["part_ids"].tolist()
    for row in range(size):
        if parts[row] is not None:
            _choose_parts(step, row, choices)
            continue
        candidates = run.by_name.get(samples[row], ())
        if len(candidates) == 1:
            choices.choose(row, BY_ID, candidates[0])
        elif candidates:
            _choose_best(step, row, candidates, choices)
        if samples[row] in run.by_trajectory and not _is_exact(step, row, choices):
            _choose_parts(step, row, choices)
    return choices


def _choose_parts(step: Step, row: int, choices: _Choices) -> None:
    found = None if step.trained["reduced"][row] else choose_parts(step, row)
    if found is None:
        return
    choices.several.pop(row, None)
    if ambiguous_parts(step, row, found, CLOCK):
        choices.choose(row, AMBIGUOUS)
    else:
        choices.choose(row, BY_PARTS)
        choices.parts[row] = tuple(found)


def _is_exact(step: Step, row: int, choices: _Choices) -> bool:
    number = int(choices.link_S[row])
    return number >= 0 and bool(_same_tokens(step, row, np.array([number])).all())


def _same_tokens(step: Step, row: int, candidates: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the candidates with all tokens of a training record, or with all tokens under its mask."""
    ours, theirs = step.trained, step.run.sampled
    n, tokens = theirs["n_tokens"][candidates], theirs["token_hash"][candidates]
    whole = (n == ours["n_total"][row]) & (tokens == ours["full_hash"][row])
    masked = (n == ours["n_expected"][row]) & (tokens == ours["token_hash"][row])
    return np.asarray(masked if ours["reduced"][row] else whole | masked)


def _choose_best(step: Step, row: int, candidates: Sequence[int], choices: _Choices) -> None:
    """Choose the best of several records of a name, or keep those that match equally well."""
    ours, theirs, some = step.trained, step.run.sampled, np.asarray(candidates)
    n, times, tokens = (theirs[name][some] for name in ("n_tokens", "time", "token_hash"))
    trained_at, mine = ours["time"][row], ours["token_hash"][row]
    known = (times != NONE) & (trained_at != NONE)
    apart = np.where(known, np.abs(times - np.where(known, trained_at, times)), np.iinfo(np.int64).max)
    fits = (n == ours["n_total"][row]) | (n == ours["n_expected"][row])
    keys = zip(
        (tokens != mine).tolist(),
        (~_same_tokens(step, row, some)).tolist(),
        (~fits).tolist(),
        (~(known & (times <= trained_at))).tolist(),
        apart.tolist(),
        theirs["segment"][some].tolist(),
        theirs["row"][some].tolist(),
        range(len(some)),
        strict=True,
    )
    best = min(keys)[-1]
    alike = some[(tokens == tokens[best]) & (n == n[best])]
    there = alike[_was_there(step.run, alike, int(trained_at))]
    if not len(there):  # all of them later: the clock of an engine is off, and tells none of them from the others
        there = alike
    if len(there) > 1 and _differ(step.run, there):
        choices.choose(row, AMBIGUOUS)
        choices.several[row] = there.tolist()
    else:
        choices.choose(row, BY_ID, int(some[best]))


def _was_there(run: Run, numbers: NDArray[np.int64], trained_at: int) -> NDArray[np.bool_]:
    times = run.sampled["time"][numbers]
    return np.asarray((times == NONE) | (trained_at == NONE) | (times <= trained_at + CLOCK))


def _differ(run: Run, numbers: NDArray[np.int64]) -> bool:
    """Return whether rollout records have different log-probs or versions for the same tokens."""
    sums = run.sampled["logprob_sum"][numbers]
    same = np.isnan(sums).all() or bool((sums == sums[0]).all())
    return not same or len({run.spans[number] for number in numbers.tolist()}) > 1


def _by_tokens(run: Run, wanted: Wanted) -> None:
    """Link by tokens in the steps up to which no name has matched. Add steps whose links changed."""
    if not len(run.sampled):
        return
    steps = run.steps.values()
    first = min(
        (s.number for s in steps if (wanted[s].met if s in wanted else s.met)),
        default=None,
    )
    before = None if run.past is None else run.past.first_met()
    first = min((number for number in (first, before) if number is not None), default=None)
    unmet = [step for step in steps if len(step.trained) and (first is None or step.number < first)]
    chosen = _alone_by_tokens(run, unmet) if unmet else {}
    for step in steps:
        links = chosen.get(step.number, {})
        if step not in wanted and _stays(step, links):
            continue
        choices = wanted[step] = wanted.get(step) or _choices(step)
        for row, number in links.items():
            choices.several.pop(row, None)
            choices.choose(row, AMBIGUOUS if number < 0 else BY_TOKENS, number)


def _stays(step: Step, links: Mapping[int, int]) -> bool:
    """Return whether the links of a step by tokens are unchanged."""
    if not links and not step.by_tokens:
        return True
    rows = step.trained
    before = {row: int(rows["link"][row]) for row in np.flatnonzero(rows["how"] == BY_TOKENS).tolist()}
    apart = [row for row, number in links.items() if number < 0]
    return before == {row: n for row, n in links.items() if n >= 0} and bool((rows["how"][apart] == AMBIGUOUS).all())


def _alone_by_tokens(run: Run, steps: Sequence[Step]) -> dict[int, dict[int, int]]:
    """Return, by step and row, the only candidate with the same tokens, or −1 if there are several.

    A rollout record belongs to at most one sample.
    """
    names: dict[int, set[str]] = {}
    found: dict[tuple[int, int], list[int]] = {}
    for step, row, number in _token_pairs(run, steps):
        names.setdefault(number, set()).add(step.trained["sample"][row])
        found.setdefault((step.number, row), []).append(number)
    chosen: dict[int, dict[int, int]] = {}
    for (number, row), links in found.items():
        alone = len(links) == 1 and len(names[links[0]]) == 1
        chosen.setdefault(number, {})[row] = links[0] if alone else -1
    return chosen


def _token_pairs(run: Run, steps: Sequence[Step]) -> Iterator[tuple[Step, int, int]]:
    """Yield training records with the rollout records of the same tokens that were sampled shortly before them."""
    by_tokens, theirs = run.tokens_index(), run.sampled
    starts = {} if run.past is None else {number: past.begun for number, past in run.past.steps.items()}
    starts |= {step.number: begun(step) for step in run.steps.values() if len(step.trained)}
    for step in steps:
        rows = step.trained
        earliest = max((b for n, b in starts.items() if n < step.number - STEPS_BACK), default=NONE)
        columns = [rows[name].tolist() for name in ("token_hash", "n_expected", "time", "part_ids")]
        counted = step.counted_S
        for row, (tokens, n, time, parts) in enumerate(zip(*columns, strict=True)):
            if n < FEWEST_TOKENS or parts is not None or time == NONE or not counted[row]:
                continue
            for number in by_tokens.get((tokens, n), ()):
                at = int(theirs["time"][number])
                if NONE != at <= time + CLOCK and (earliest == NONE or at >= earliest - CLOCK):
                    yield step, row, number


def _settle_several(memory: Memory, wanted: Wanted) -> None:
    """Choose, from several candidates, the only one whose log-probs the trainer received."""
    pairs = []
    for step, choices in wanted.items():
        rows = [row for row, numbers in choices.several.items() for _ in numbers]
        if rows:
            numbers = [number for some in choices.several.values() for number in some]
            pairs.append(_Pairs(step, np.array(rows), np.array(numbers)))
    same: dict[tuple[Step, int], list[int]] = {}
    for some, columns in _compared(memory, pairs):
        found = zip(some.rows_P.tolist(), some.links_P.tolist(), columns["difference"].tolist(), strict=True)
        for row, number, difference in found:
            if difference <= SAME_VALUE:
                same.setdefault((some.step, row), []).append(number)
    for (step, row), links in same.items():
        if len(links) == 1:
            wanted[step].choose(row, BY_ID, links[0])


def _apply(memory: Memory, wanted: Wanted) -> None:
    """Compare new pairs and store their links."""
    pairs: list[_Pairs] = []
    for step, choices in wanted.items():
        rows = step.trained
        if not len(rows):
            continue
        links_S = choices.link_S
        made = _made_of_parts(memory, step, choices)
        step.touched.update(np.flatnonzero((choices.how_S != rows["how"]) | (links_S != rows["link"])).tolist())
        other = np.flatnonzero((links_S != rows["link"]) & (links_S >= 0))
        step.touched.update(made.rows_P.tolist())
        for row in np.flatnonzero((links_S < 0) & (rows["how"] != UNLINKED)).tolist():
            if row not in choices.parts:
                _forget(step, row)
        rows["how"][:], rows["link"][:] = choices.how_S, links_S
        step.met, step.by_tokens = choices.met, bool(np.isin(choices.how_S, (BY_TOKENS, AMBIGUOUS)).any())
        pairs += [some for some in (_Pairs(step, other, links_S[other]), made) if len(some)]
    for some, columns in _compared(memory, pairs):
        _write(some, columns)


def _made_of_parts(memory: Memory, step: Step, choices: _Choices) -> _Pairs:
    """Return the sequences whose parts changed, each with a record made of them."""
    for row in step.parts.keys() - choices.parts.keys():
        del step.parts[row]
    new = [row for row, numbers in choices.parts.items() if not _are_placed(step, row, numbers)]
    if new:
        numbers = [number for row in new for number in choices.parts[row]]
        memory.fetch([(step, new)], [(step.run, numbers)])
        for row in list(new):
            lists = [step.trained["lists"][row], *step.run.sampled["lists"][list(choices.parts[row])]]
            if min(lists) >= 0:
                step.parts[row] = place_parts(memory, step, row, choices.parts[row])
            else:  # without all tokens the places of the parts cannot be found
                new.remove(row)
                _leave(step, row, choices)
    return _Pairs(step, np.array(new, np.intp), np.full(len(new), -1), [step.parts[row] for row in new])


def _are_placed(step: Step, row: int, numbers: tuple[int, ...]) -> bool:
    """Return whether a sequence has these parts already, with the versions that marks give now."""
    parts = step.parts.get(row)
    if parts is None or parts.numbers != numbers:
        return False
    return parts.sequence is not None or step.run.respanned.isdisjoint(numbers)


def _leave(step: Step, row: int, choices: _Choices) -> None:
    """Keep a sequence that has the same parts, and unlink any other one."""
    parts = step.parts.get(row)
    if parts is not None and parts.numbers == choices.parts[row]:
        return
    step.parts.pop(row, None)
    del choices.parts[row]
    choices.choose(row, UNLINKED)


def _forget(step: Step, row: int) -> None:
    """Reset the results of the comparison with a rollout record."""
    rows = step.trained
    received = bool(rows["received"][row])
    rows["source"][row], rows["alignment"][row] = RECEIVED if received else MISSING, -1
    for name in ("token_match", "length_match", "difference", *ROUTE_COLUMNS):
        rows[name][row] = np.nan
    for pair in ENGINE_PAIRS if not received else ():
        rows.put(pair, row, 0)
        rows[HAS + pair][row] = False


def _write(pairs: _Pairs, columns: Columns) -> None:
    rows, own_P = pairs.step.trained, ~pairs.ours("received")  # what the trainer received stays its r
    for name, values in columns.items():
        if name not in ENGINE_PAIRS and not name.startswith(HAS):
            rows.put(name, pairs.rows_P, values)
        elif own_P.any():
            rows.put(name, pairs.rows_P[own_P], values[own_P])


def _compared(memory: Memory, pairs: Sequence[_Pairs]) -> Iterator[tuple[_Pairs, Columns]]:
    """Yield the results of the comparison of pairs, as columns of `Step.trained`."""
    for batch in _batches(pairs):
        memory.fetch(
            [(some.step, some.rows_P.tolist()) for some in batch if not some.parts],
            [(some.step.run, some.links_P.tolist()) for some in batch if not some.parts],
        )
        at_hand = [(some, _with_lists(some)) for some in batch]
        with_lists = [some.only(has_P) for some, has_P in at_hand if has_P.any()]
        without = [some.only(~has_P) for some, has_P in at_hand if not has_P.all()]
        for group, compare in ((with_lists, partial(_by_lists, memory)), (without, _by_fingerprints)):
            columns = compare(group) if group else {}
            ends = np.cumsum([len(some) for some in group]).tolist()
            for some, end in zip(group, ends, strict=True):
                yield some, {name: values[end - len(some) : end] for name, values in columns.items()}


def _batches(pairs: Sequence[_Pairs]) -> Iterator[list[_Pairs]]:
    """Yield batches of pairs with about `TOKENS_PER_BATCH` tokens each."""
    if not pairs:
        return
    tokens = np.concatenate([some.tokens_P for some in pairs])
    numbers = np.split((np.cumsum(tokens) - tokens) // TOKENS_PER_BATCH, np.cumsum([len(some) for some in pairs[:-1]]))
    batches: dict[int, list[_Pairs]] = {}
    for some, of_batch in zip(pairs, numbers, strict=True):
        for number in np.unique(of_batch).tolist():
            batches.setdefault(number, []).append(some.only(of_batch == number))
    yield from batches.values()


def _with_lists(pairs: _Pairs) -> NDArray[np.bool_]:
    """Return a mask of the pairs whose records both have their tokens [P]."""
    if pairs.parts:
        return np.ones(len(pairs), np.bool_)
    return np.asarray((pairs.ours("lists") >= 0) & (pairs.theirs("lists") >= 0))


def _all(pairs: Sequence[_Pairs], name: str) -> NDArray[Any]:
    """Return one column of the training records of all pairs."""
    return np.concatenate([some.ours(name) for some in pairs])


def _by_lists(memory: Memory, pairs: Sequence[_Pairs]) -> Columns:
    lists = _with_rollouts(memory, pairs, memory.training_lists.take(_all(pairs, "lists")))
    aligned = align(lists)
    r_N = source_logprobs(lists, aligned)
    received_P = _all(pairs, "received")
    joined_P = np.where(np.asarray(lists["logprobs"].is_valid()), JOINED, MISSING)
    fits_P = aligned.match_S | (_all(pairs, "n_total") == 0)  # a row masked as a whole has no token that could differ
    source_P = np.where(received_P, RECEIVED, np.where(fits_P, joined_P, UNALIGNED))
    complete_P = np.concatenate([[made.complete for made in some.parts] or [True] * len(some) for some in pairs])
    size = len(received_P)
    routes = route_counts(lists, aligned) if lists["routes"].null_count < size else no_routes(size)
    columns: Columns = {
        "source": source_P.astype(np.int8),
        "alignment": codes(aligned.names(), ALIGNMENTS),
        "token_match": np.where(fits_P & ~aligned.match_S, np.nan, aligned.match_S.astype(np.float64)),
        "length_match": np.where(fits_P & ~aligned.match_S, np.nan, (aligned.fits_S & complete_P).astype(np.float64)),
        "difference": ragged.floats(received_differences(lists, aligned, r_N)),
        **{name: ragged.floats(routes[name]) for name in ROUTE_COLUMNS},
    }
    if received_P.all():  # what the trainer received stays its r
        return columns | _no_statistics(size)
    statistics = joined_statistics(lists, aligned, r_N)
    for name in ENGINE_PAIRS:
        columns[name], columns[HAS + name] = statistics_of(statistics[name])
    return columns


def _with_rollouts(memory: Memory, pairs: Sequence[_Pairs], lists: pa.Table) -> pa.Table:
    """Return the lists of training records joined with those of their rollout records."""
    numbers = [some.theirs("lists") for some in pairs if not some.parts]
    tables = [memory.rollout_lists.take(np.concatenate(numbers)).select(_THEIRS.names)] if numbers else []
    if made := [each.record for some in pairs for each in some.parts]:
        of_parts = np.concatenate([np.full(len(some), bool(some.parts)) for some in pairs])
        order = np.argsort([*np.flatnonzero(~of_parts), *np.flatnonzero(of_parts)])
        tables = [pa.concat_tables([*tables, pa.Table.from_pylist(made, _THEIRS)]).take(pa.array(order))]
    theirs = tables[0].combine_chunks()
    with_routes = pa.array(np.concatenate([some.with_routes_P for some in pairs]))
    ours, others = (_only(column, with_routes) for column in (lists["routes"], theirs["routes"]))
    return (
        lists.set_column(lists.schema.get_field_index("routes"), "routes", ours)
        .append_column("rollout_token_ids", theirs["token_ids"])
        .append_column("logprobs", theirs["logprobs"])
        .append_column("rollout_routes", others)
    )


def _only(column: pa.ChunkedArray, keep: pa.Array) -> pa.ChunkedArray:
    if pc.all(keep).as_py():
        return column
    return pc.if_else(keep, column, pa.scalar(None, column.type))


def _by_fingerprints(pairs: Sequence[_Pairs]) -> Columns:
    """Compare records without tokens by their fingerprints."""
    total, expected, tokens, received = (
        _all(pairs, name) for name in ("n_total", "n_expected", "token_hash", "received")
    )
    n, theirs = (np.concatenate([some.theirs(name) for some in pairs]) for name in ("n_tokens", "token_hash"))
    same, fits = theirs == tokens, (n == total) | (n == expected)
    # The fingerprint is of the tokens under the mask: it says nothing when the engine's tokens are more than those.
    decided = (~fits | (n == expected)) & ((total > 0) | (n == 0))
    size = len(n)
    columns: Columns = {
        "source": np.where(received, RECEIVED, np.where(decided & ~same, UNALIGNED, MISSING)).astype(np.int8),
        "alignment": np.where(decided & same, np.where(n == total, 0, 1), -1).astype(np.int8),
        "token_match": np.where(decided, same.astype(np.float64), np.nan),
        "length_match": np.where((total > 0) | (n == 0), fits.astype(np.float64), np.nan),
        "difference": np.full(size, np.nan),
        **{name: np.full(size, np.nan) for name in ROUTE_COLUMNS},
    }
    return columns | _no_statistics(size)


def _no_statistics(size: int) -> Columns:
    columns: Columns = {}
    for name in ENGINE_PAIRS:
        columns[name], columns[HAS + name] = statistics_of(pa.nulls(size, pa.struct([])))
    return columns
