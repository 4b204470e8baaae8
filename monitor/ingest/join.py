"""Rollout ⨝ training: finds the engine's record of each trained sequence, compares the two, and fills in what was
missing.

Records may arrive in either order. Ingest puts every arriving sample on a queue; this job takes samples off it, looks
up their records on both sides in bulk, and for each trained sequence that is not known to match

* links the rollout record (which of several: see ``sql/join_candidates.sql``),
* says whether numbers and ids of tokens agree,
* where the trainer did not receive ``r``, computes the statistics with ``r`` at the source,
* where it did, compares the two ``r``,
* where both sides recorded routes of a mixture of experts, counts how many are the same.

Where no sample id of a run has met, sequences are joined by the tokens themselves (``sql/join_by_tokens.sql``), if only
one rollout record has them.

A sequence that was sampled in several engine requests is compared with one record made of theirs (see `trajectories`),
which is stored.

Without raw tokens on both sides, fingerprints of the ids decide about the match, and nothing is computed. A step that
got anything is marked dirty. Each batch is one transaction and doing it twice changes nothing; the queue is cut last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.errors import QueryError
from logprobe.collectors.kernel.pairs import SIDES
from logprobe.collectors.spool.schema import STATISTICS
from logprobe.monitor import queries
from logprobe.monitor.ingest.backoff import RunBackoff
from logprobe.monitor.ingest.sequence_rows import (
    align,
    joined_statistics,
    no_routes,
    received_differences,
    route_counts,
    source_logprobs,
    statistics_rows,
)
from logprobe.monitor.ingest.trajectories import TRAJECTORY_KEY, joined_records
from logprobe.monitor.store.store import Store

SAMPLES_PER_ROUND: Final = 50_000
TOKENS_PER_BATCH: Final = 4_000_000  # of both sides; some 25 bytes each while a batch is worked on

_LAYERS_OF_A_TOKEN: Final = 8  # so many layers of both sides take the memory of a token's log-probs, ids and masks

_CLOCK_SECONDS: Final = 10.0  # by which clocks of machines may differ
_SAME_VALUE: Final = 1e-4  # of a log-prob on its way to the trainer: rounded to text, not computed again
_SAME_TOKENS: Final = {
    "fewest": 8,  # tokens: shorter answers are often alike
    "steps": 16,
    "clock": _CLOCK_SECONDS,
}
_KEY: Final = ("run", "step", "segment_id", "row", "rollout_segment", "rollout_row")
_AMBIGUOUS: Final = ("join_forget_joined", "forget_trajectories", "join_ambiguous", "mark_dirty")
_WRITES: Final = ("join_update", "mark_dirty")


@dataclass(slots=True)
class JoinReport:
    """What one run did, in trained sequences; `remaining`: marks left on the queue."""

    linked: int = 0
    joined: int = 0  # got their r from the rollout record
    unaligned: int = 0  # numbers or ids of tokens differ
    ambiguous: int = (
        0  # by name and tokens, or by tokens, they may belong to several records, or a record to several of them
    )
    remaining: int = 0
    seconds: float = 0.0
    problem: str | None = None  # which runs cannot be joined now, and why; they are tried again


class Joiner:
    """Joins what ingest has queued. One per store, used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._resting = RunBackoff()

    def run_once(self, *, max_rounds: int | None = None) -> JoinReport:
        """Works the queue off, or `max_rounds` rounds of `SAMPLES_PER_ROUND` marks of it.

        Raises:
            StoreError: the store or the disk refused; the queue keeps what was not done.
        """
        started = time.perf_counter()
        report = JoinReport()
        rounds = 0
        while (marks := self._next_round(report))["high"] is not None and rounds != max_rounds:
            resting = self._resting.now()
            self._round(marks["high"], report)
            rounds += 1
            if marks["taken"] == marks["waiting"] and self._resting.now() == resting:  # another look costs milliseconds
                report.remaining = 0
                break
        report.problem = self._resting.problem
        report.seconds = time.perf_counter() - started
        return report

    def _next_round(self, report: JoinReport) -> dict[str, Any]:
        marks = queries.join_marks(
            self._store.kept, samples=SAMPLES_PER_ROUND, resting=self._resting.now()
        ).to_pylist()[0]
        report.remaining = marks["waiting"]
        return dict(marks)

    def _round(self, high: int, report: JoinReport) -> None:
        # Looked up once: a run whose rest ends meanwhile must not be taken for done.
        resting = self._resting.now()
        # Between looking up where raw tokens lie and reading them, no file may go away.
        with self._store.holding_files():
            candidates = queries.join_candidates(self._store, high=high, resting=resting, clock=_CLOCK_SECONDS)
            for batch in _batches(candidates):
                self._of_each_run(batch, resting, lambda some: self._join_pairs(some, report))
            ways = queries.join_ways(self._store, high=high, resting=resting).to_pylist()[0]
            if ways["parts"]:
                for batch in _batches(queries.join_trajectories(self._store, high=high, clock=_CLOCK_SECONDS)):
                    self._of_each_run(batch, resting, lambda some: self._join_trajectories(some, report))
            if ways["unmet"]:
                same_tokens = queries.join_by_tokens(self._store, high=high, resting=resting, **_SAME_TOKENS)
                for batch in _batches(same_tokens):
                    self._of_each_run(batch, resting, lambda some: self._join_by_tokens(some, report))
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "join_done", high=high, resting=resting)

    def _of_each_run(self, batch: pa.Table, resting: list[str], work: Callable[[pa.Table], None]) -> None:
        """Works on a batch; when its tokens cannot be read, on each run by itself: a run that is at fault rests and
        holds up no other."""
        some = batch.filter(pc.invert(pc.is_in(batch["run"], pa.array(resting, pa.string()))))
        runs = some["run"].unique().to_pylist()
        try:
            if runs:
                work(some)
        except QueryError as error:
            if len(runs) == 1:
                self._resting.add(runs[0], error)
                resting.append(runs[0])
                return
            for run in runs:
                self._of_each_run(some.filter(pc.equal(some["run"], run)), resting, work)

    def _join_pairs(self, batch: pa.Table, report: JoinReport) -> None:
        alone, several = batch.filter(pc.invert(batch["several"])), batch.filter(batch["several"])
        results = [self._compare(alone)] if alone.num_rows else []
        if several.num_rows:
            matched, unknown = _matching(self._compare(several))
            results.append(matched)
            self._leave_apart(unknown, report)
        for result in filter(len, results):
            self._write(result)
            _count(result, report)

    def _leave_apart(self, records: pa.Table, report: JoinReport) -> None:
        """Which of several records is theirs is not known, so none is."""
        if not records.num_rows:
            return
        with self._store.transaction() as cursor:
            for name in _AMBIGUOUS:
                self._store.execute(cursor, name, records)
        report.ambiguous += records.num_rows

    def _join_by_tokens(self, batch: pa.Table, report: JoinReport) -> None:
        """Joins pairs that nothing else could be meant by, and takes back what has become ambiguous."""
        alone, others = batch.filter(batch["alone"]), batch.filter(pc.invert(batch["alone"]))
        if alone.num_rows:
            results = self._compare(alone)
            results = _joined_by(results.filter(pc.equal(results["token_match"], True)), "tokens")
            self._write(results)
            _count(results, report)
        self._leave_apart(others, report)

    def _compare(self, batch: pa.Table) -> pa.Table:
        has_raw = pc.and_(batch["training_file"].is_valid(), batch["rollout_file"].is_valid())
        with_raw, without = batch.filter(has_raw), batch.filter(pc.invert(has_raw))
        parts = []
        if with_raw.num_rows:
            parts.append(self._compare_tokens(with_raw))
        if without.num_rows:
            parts.append(_compare_fingerprints(without))
        return pa.concat_tables(parts)

    def _compare_tokens(self, batch: pa.Table) -> pa.Table:
        keys = batch.select(["segment_id", "row", "rollout_segment", "rollout_row"])
        lists = queries.join_lists(
            self._store,
            keys.append_column("number", pa.array(np.arange(batch.num_rows))).append_column(
                "with_routes", pc.greater(batch["route_layers"], 0)
            ),
            **self._store.raw_places(training=batch["training_file"], rollout=batch["rollout_file"]),
        )
        return _results(batch.take(lists["number"]), lists)

    def _join_trajectories(self, parts: pa.Table, report: JoinReport) -> None:
        """Makes one rollout record of the parts of each sequence, and compares it with the trainer's like any other.

        None of those one of whose parts has several records that say different things of the same tokens.
        """
        self._leave_apart(_one_of_each(parts.filter(parts["several"])), report)
        parts = parts.filter(pc.invert(parts["several"])).drop_columns("several")
        if not parts.num_rows:
            return
        ours = parts.group_by(
            [*TRAJECTORY_KEY, "run", "step", "rollout_source", "training_file"], use_threads=False
        ).aggregate([])
        number = pa.array(np.arange(ours.num_rows))
        lists = queries.join_training_lists(
            self._store,
            ours.select(TRAJECTORY_KEY).append_column("number", number),
            **self._store.raw_places(training=ours["training_file"]),
        )
        theirs = queries.join_rollout_lists(
            self._store,
            parts.select(["rollout_segment", "rollout_row"]).append_column(
                "number", pa.array(np.arange(parts.num_rows))
            ),
            **self._store.raw_places(rollout=parts["rollout_file"]),
        )
        records = joined_records(ours, lists, parts, theirs)
        results = _results(records.trained, records.lists)
        fits = pc.and_(results["length_match"], records.trained["complete"])
        place = results.schema.get_field_index("length_match")
        results = _joined_by(results.set_column(place, "length_match", fits), "parts")
        self._write(results, records.rollouts)
        _count(results, report)

    def _write(self, results: pa.Table, trajectories: pa.Table | None = None) -> None:
        with self._store.transaction() as cursor:
            for name in ("forget_trajectories", "insert_trajectories") if trajectories is not None else ():
                self._store.execute(cursor, name, trajectories)
            flat = results.drop_columns([*SIDES])  # making structs known takes long
            for name in _WRITES:
                self._store.execute(cursor, name, flat)
            statistics = statistics_rows(results)
            if statistics.num_rows:
                self._store.execute(cursor, "join_forget_statistics", results)
                self._store.execute(cursor, "insert_statistics", statistics)


def _one_of_each(parts: pa.Table) -> pa.Table:
    """The first part of each record."""
    return parts.filter(pc.equal(parts["place"], 1))


def _matching(results: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Records that are compared with several: those that received the log-probs of one of them, and the others, one row
    each."""
    keys = list(zip(*(results[name].to_pylist() for name in ("segment_id", "row")), strict=True))
    differences = results["received_max_abs_diff"].to_pylist()
    same: dict[tuple[str, int], list[int]] = {key: [] for key in keys}
    for number, (key, difference) in enumerate(zip(keys, differences, strict=True)):
        if difference is not None and difference <= _SAME_VALUE:
            same[key].append(number)
    matched = [places[0] for places in same.values() if len(places) == 1]
    unknown = [keys.index(key) for key, places in same.items() if len(places) != 1]
    return results.take(pa.array(matched, pa.int64())), results.take(pa.array(unknown, pa.int64()))


def _results(batch: pa.Table, lists: pa.Table) -> pa.Table:
    """What is to be written about records whose tokens are at hand."""
    aligned = align(lists)
    r_N = source_logprobs(lists, aligned)
    statistics = joined_statistics(lists, aligned, r_N)
    received = np.asarray(pc.equal(batch["rollout_source"], "received"))
    has_source = np.asarray(lists["logprobs"].is_valid())
    source = np.where(aligned.match_S, np.where(has_source, "joined", "missing"), "unaligned")
    taken = pa.array(~received)  # what the trainer received stays its r; only the comparison is news
    columns: dict[str, Any] = {name: batch[name] for name in _KEY}
    columns |= {
        "rollout_source": pa.array(np.where(received, "received", source)),
        "alignment": aligned.names(),
        "joined_by": pa.repeat("id", batch.num_rows),
        "token_match": pa.array(aligned.match_S),
        "length_match": pa.array(aligned.fits_S),
        "received_max_abs_diff": received_differences(lists, aligned, r_N),
        **(route_counts(lists, aligned) if lists["routes"].null_count < lists.num_rows else no_routes(lists.num_rows)),
    }
    for pair, values in statistics.items():
        columns[pair] = pc.if_else(taken, values, pa.scalar(None, values.type))
    return pa.table(columns)


def _compare_fingerprints(batch: pa.Table) -> pa.Table:
    """What can be said of records whose raw tokens were not kept on one side at least."""
    n, total, expected = (np.asarray(batch[name]) for name in ("n_tokens", "n_total", "n_expected"))
    fits = (n == total) | (n == expected)
    same = np.asarray(batch["same_hash"].fill_null(False))
    # The fingerprint is of the tokens under the mask: it says nothing when the engine's tokens are more than those.
    decided = ~fits | (n == expected)
    source = batch["rollout_source"].combine_chunks()
    unaligned = pa.array(decided & ~same & ~np.asarray(pc.equal(source, "received")))
    columns: dict[str, Any] = {name: batch[name] for name in _KEY}
    columns |= {
        "rollout_source": pc.if_else(unaligned, "unaligned", source),
        "alignment": pa.array(np.where(n == total, "all", "masked"), mask=~(decided & same)),
        "joined_by": pa.repeat("id", batch.num_rows),
        "token_match": pa.array(same, mask=~decided),
        "length_match": pa.array(fits),
        "received_max_abs_diff": pa.nulls(batch.num_rows, pa.float64()),
        **no_routes(batch.num_rows),
    }
    for pair in ("update", "reference", "backend", "total"):
        columns[pair] = pa.nulls(batch.num_rows, STATISTICS.field(pair).type)
    return pa.table(columns)


def _batches(candidates: pa.Table) -> Iterator[pa.Table]:
    """Consecutive rows with at most `TOKENS_PER_BATCH` tokens together, or one row with more; routes weigh as more
    tokens.

    Rows of one training record, its parts, stay together.
    """
    tokens = np.asarray(candidates["n_total"], dtype=np.int64) + np.asarray(candidates["n_tokens"], dtype=np.int64)
    tokens *= 1 + np.asarray(candidates["route_layers"], dtype=np.int64) // _LAYERS_OF_A_TOKEN
    number = (np.cumsum(tokens) - tokens) // TOKENS_PER_BATCH
    number = number[_first_of_record(candidates)]
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for first, last in pairwise([*starts, len(number)]):
        yield candidates.slice(int(first), int(last - first))


def _first_of_record(candidates: pa.Table) -> NDArray[np.int64]:
    """[rows] the first row of the same training record; rows are in the order of records."""
    names = [np.asarray(candidates[name]) for name in ("segment_id", "row")]
    begins = np.logical_or.reduce([np.concatenate([[True], name[1:] != name[:-1]]) for name in names])[
        : candidates.num_rows
    ]
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


def _joined_by(results: pa.Table, how: str) -> pa.Table:
    return results.set_column(
        results.schema.get_field_index("joined_by"), "joined_by", pa.repeat(how, results.num_rows)
    )


def _count(results: pa.Table, report: JoinReport) -> None:
    sources = results["rollout_source"].to_pylist()
    report.linked += len(sources)
    report.joined += sources.count("joined")
    report.unaligned += sources.count("unaligned")
