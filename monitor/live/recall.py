"""Read back stored records that new records concern: whole steps, and the rollout records of their samples.

A step is thus computed from the whole set of its records. They may be new, stored before a restart, or released to save
memory.

Dimensions: ``_S`` training records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import PAIRS, SIDES
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.monitor import ragged
from logprobe.monitor.live.attempts import Sign, beginnings
from logprobe.monitor.live.memory import (
    Memory,
    Run,
    Source,
    Step,
    StepKey,
    Told,
    groups,
    index,
    names_of,
    sampled_facts,
    steps_of,
    take_sampled,
    take_weights,
)
from logprobe.monitor.live.past import Past, PastStep
from logprobe.monitor.live.records import (
    ALIGNMENTS,
    BY_PARTS,
    HAS,
    HOW,
    SOURCES,
    Columns,
    codes,
    needed_scalars,
    trained_columns,
    weight_records,
)
from logprobe.monitor.live.rows import NO_LISTS, NONE, ON_DISK, whole_numbers
from logprobe.monitor.live.sequence_rows import ROUTE_COLUMNS
from logprobe.monitor.live.trajectories import Parts

_NAMES_AT_A_TIME: Final = 1 << 16
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Link:
    """A training record that was read back, with the key of its rollout record."""

    step: Step
    row: int
    key: _Key


def meet(memory: Memory, names: Iterable[str]) -> None:
    """Load the index of stored runs that are not in memory."""
    unknown = [name for name in names if name not in memory.runs]
    if not unknown or memory.source is None:
        return
    for name in memory.source.read("past_runs", runs=unknown)["run"].to_pylist():
        run = memory.runs[name] = Run(name)
        _learn(run, memory.source)


def _learn(run: Run, source: Source) -> None:
    take_weights(run, list(weight_records(source.read("past_weights", run=run.name))))
    run.renamed.clear()  # as the store has them
    for row in source.read("past_signs", run=run.name).to_pylist():
        time = NONE if row["time"] is None else row["time"]
        run.signs.append(Sign.of(row, time))
    run.begun = beginnings(run.signs)
    for row in source.read("past_last", run=run.name).to_pylist():
        run.last[row["writer"]] = NONE if row["last"] is None else row["last"]
    run.frozen = {row["step"]: row["time"] for row in source.read("past_frozen", run=run.name).to_pylist()}
    run.past = past = Past()
    for row in source.read("past_steps", run=run.name).to_pylist():
        begun, newest = (NONE if row[name] is None else int(row[name]) for name in ("begun", "newest"))
        past.steps[row["step"]] = PastStep(begun, newest, row["met"], row["by_tokens"])
    for row in source.read("past_labels", run=run.name).to_pylist():
        past.label(row["step"], [row["version"]])
    (ends,) = source.read("past_ends", run=run.name).to_pylist()
    past.last, past.wall = (NONE if ends[name] is None else ends[name] for name in ("last", "wall"))
    for known, statement in ((past.trained, "past_names"), (past.sampled, "past_sampled")):
        names = source.read(statement, run=run.name)
        for start in range(0, names.num_rows, _NAMES_AT_A_TIME):
            some = names.slice(start, _NAMES_AT_A_TIME)
            known.add(some["name"].to_pylist(), some["step"].to_numpy())
    run.first_met = past.first_met()


def recall(memory: Memory, runs: Iterable[Run]) -> set[StepKey]:
    """Read back the records that news of some runs concern, and return the steps that were read."""
    source = memory.source
    if source is None:
        return set()
    return {(run.name, number) for run in runs if run.past is not None for number in _recall(memory, run, source)}


def _recall(memory: Memory, run: Run, source: Source) -> set[int]:
    past, found = _past(run), set[int]()
    if run.marked is not None and past.reached(*run.marked):
        moment, wall = run.marked
        numbers = _take(run, source.read("past_reached", run=run.name, moment=moment, wall=wall))
        changed = memory.resolve(run, numbers)
        run.recall |= past.trained.steps(names_of(run, changed))
        found |= steps_of(run, changed)
    run.marked = None
    links: list[_Link] = []
    while True:
        steps = run.recall & past.steps.keys()
        run.recall.clear()
        if steps:
            links += _take_steps(run, source, sorted(steps))
            found |= steps
        names = past.sampled.has({name for name in run.asked if name not in run.known})
        run.asked.clear()
        run.known.update(names)
        if names:
            _take(run, source.read("past_named", pa.table({"name": pa.array(names, pa.string())}), run=run.name))
        _look_for_tokens(run, source)
        if not run.recall & past.steps.keys() and not run.asked:
            break
    _link(run, source, links)
    return found


def _past(run: Run) -> Past:
    if run.past is None:
        raise ValueError(f"run {run.name!r} has no index of stored records; call meet() first")
    return run.past


def _look_for_tokens(run: Run, source: Source) -> None:
    """Read back records with the same tokens as new ones, for runs or steps in which no name has matched."""
    hashes = set(run.asked_tokens)
    if len(run.sampled) > run.seen and _has_unmet(run):
        hashes.update(run.sampled["token_hash"][run.seen :].tolist())
    hashes -= run.known_tokens
    run.asked_tokens.clear()
    run.seen = len(run.sampled)
    if not hashes:
        return
    run.known_tokens |= hashes
    some = pa.table({"token_hash": pa.array(sorted(hashes), pa.uint64())})
    _take(run, source.read("past_alike", some, run=run.name))
    steps = source.read("past_alike_steps", some, run=run.name)["step"].to_pylist()
    run.recall |= {step for step in steps if run.first_met is None or step < run.first_met}


def _has_unmet(run: Run) -> bool:
    first = run.first_met
    return first is None or any(number < first for number in (*run.steps, *_past(run).steps))


def names_met_elsewhere(run: Run) -> bool:
    """Select past steps that must be linked by the other method now; return whether there are any."""
    if run.past is None:
        return False
    numbers = [step.number for step in run.steps.values() if step.met]
    before, first = run.first_met, run.past.first_met()
    first = min([*numbers, *([] if first is None else [first])], default=None)
    run.first_met = first
    if first == before:
        return False
    upto = np.inf if first is None else first
    since = np.inf if before is None else before
    run.recall |= {
        number
        for number, step in run.past.steps.items()
        if (step.by_tokens and upto <= number) or since <= number < upto
    }
    return bool(run.recall)


def _take(run: Run, table: pa.Table) -> range:
    """Add rollout records that were read back, except those in memory."""
    here = set(_keys(run))
    keys = zip(table["segment_id"].to_pylist(), table["row"].to_pylist(), strict=True)
    table = table.filter(pa.array([key not in here for key in keys], pa.bool_())).combine_chunks()
    if not table.num_rows:
        return range(0)
    columns, spans, decided = sampled_facts(table)
    columns["lists"] = _lists(table)
    numbers = take_sampled(run, columns, spans, decided)
    index(run, numbers)
    return numbers


def _keys(run: Run) -> list[_Key]:
    if not len(run.sampled):
        return []
    return list(zip(run.sampled["segment"].tolist(), run.sampled["row"].tolist(), strict=True))


def _lists(table: pa.Table) -> NDArray[np.int64]:
    return np.where(np.asarray(table["kept"].fill_null(False)), ON_DISK, NO_LISTS)


def _take_steps(run: Run, source: Source, numbers: Sequence[int]) -> list[_Link]:
    """Add all records of some steps, and return their links to rollout records."""
    past, some = _past(run), pa.table({"step": pa.array(numbers, pa.int64())})
    table = source.read("past_trained", some, run=run.name)
    links = []
    if table.num_rows:
        columns = _trained(table, source.read("past_statistics", some, run=run.name))
        rest = table.select(["rollout_segment", "rollout_row", "repeated_by", "began"])
        for _, number, rows in groups(table["run"], table["step"].to_numpy()):
            step = run.step(number)
            new = step.add({name: column[rows] for name, column in columns.items()})
            for row, said in zip(new, rest.slice(rows.start, rows.stop - rows.start).to_pylist(), strict=True):
                if said["rollout_segment"] is not None:
                    links.append(_Link(step, row, (said["rollout_segment"], said["rollout_row"])))
                if said["repeated_by"] is not None:
                    step.aside[row] = (said["repeated_by"], _microseconds(said["began"]))
    told = source.read("past_told", some, run=run.name)
    if told.num_rows:
        times, ranks = whole_numbers(told["time"]).tolist(), whole_numbers(told["rank"]).tolist()
        values, corrections = needed_scalars(told["scalars"]), told["correction"].to_pylist()
        for number, *fields in zip(told["step"].to_pylist(), ranks, times, values, corrections, strict=True):
            run.step(number).told.append(Told(*fields))
    for number in numbers:
        run.step(number).stored = True
        del past.steps[number]
    run.recall -= set(numbers)
    return links


def _microseconds(time: Any) -> int:
    return int(pa.scalar(time, pa.timestamp("us", "UTC")).value)


def _trained(table: pa.Table, statistics: pa.Table) -> Columns:
    size = table.num_rows
    nothing = pa.nulls(size, pa.struct([]))
    for pair in SIDES:
        table = table.append_column(pair, nothing)
    columns = trained_columns(table)
    columns["reduced"] = np.asarray(table["reduced"])
    columns["full_hash"] = np.asarray(pc.coalesce(table["full_hash"], table["token_hash"]).fill_null(0))
    columns["lists"] = _lists(table)
    columns["how"] = codes(table["joined_by"], HOW)
    columns["source"] = codes(table["rollout_source"], SOURCES)
    columns["alignment"] = codes(table["alignment"], ALIGNMENTS)
    columns["difference"] = ragged.floats(table["received_max_abs_diff"])
    for name in ("token_match", "length_match", *ROUTE_COLUMNS):
        columns[name] = ragged.floats(table[name].cast(pa.float64()))
    places = {key: place for place, key in enumerate(_row_keys(table))}
    for pair in PAIRS:
        of_pair = statistics.filter(pc.equal(statistics["pair"], pair))
        rows = [places[key] for key in _row_keys(of_pair)]
        if rows:
            values = [ragged.floats(of_pair[spec.name].cast(pa.float64())) for spec in COLUMN_SPECS]
            columns[pair] = np.zeros((size, len(COLUMN_SPECS)))
            columns[pair][rows], columns[HAS + pair][rows] = np.stack(values, axis=1), True
    return columns


def _row_keys(table: pa.Table) -> list[_Key]:
    return list(zip(table["segment_id"].to_pylist(), table["row"].to_pylist(), strict=True))


def _link(run: Run, source: Source, links: Sequence[_Link]) -> None:
    """Set the numbers of the rollout records of training records that were linked by name or by tokens."""
    if not links:
        return
    made = _parts(run, source, [link for link in links if link.step.trained["how"][link.row] == BY_PARTS])
    places = {key: number for number, key in enumerate(_keys(run))}
    wanted = {link.key for link in links if link.step.trained["how"][link.row] != BY_PARTS}
    wanted.update(key for _, keys in made.values() for key in keys)
    if missing := sorted(wanted - places.keys()):
        keys = {"segment_id": [segment for segment, _ in missing], "row": [row for _, row in missing]}
        _take(run, source.read("past_keyed", pa.table(keys), run=run.name))
        places = {key: number for number, key in enumerate(_keys(run))}
    for link in links:
        if (found := made.get((link.step, link.row))) is None:
            link.step.trained["link"][link.row] = places.get(link.key, -1)
        elif all(key in places for key in found[1]):
            n_tokens, spans = found[0]
            link.step.parts[link.row] = Parts(tuple(places[key] for key in found[1]), None, n_tokens, spans)


_Made = tuple[tuple[int, Any], list[_Key]]


def _parts(run: Run, source: Source, links: Sequence[_Link]) -> Mapping[tuple[Step, int], _Made]:
    """Return the number of tokens, the versions and the parts of sequences that were sampled in several requests."""
    if not links:
        return {}
    at = {(link.step.trained["segment"][link.row], int(link.step.trained["row"][link.row])): link for link in links}
    keys = pa.table({"segment_id": [segment for segment, _ in at], "row": [row for _, row in at]})
    found: dict[tuple[Step, int], _Made] = {}
    for row in source.read("past_parts", keys, run=run.name).to_pylist():
        link = at[row["segment_id"], row["row"]]
        spans = tuple((span["start"], span["end"], span["version"]) for span in row["spans"] or ())
        parts = [(part["segment_id"], part["row"]) for part in row["parts"]]
        found[link.step, link.row] = ((row["n_tokens"], spans), parts)
    return found
