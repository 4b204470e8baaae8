"""Rollout ⨝ training: finds the engine's record of each trained sequence, compares the two, and fills in what was missing.

Records may arrive in either order. Ingest puts every arriving sample on a queue; this job takes samples off it, looks up
their records on both sides in bulk, and for each trained sequence that is not known to match

* links the rollout record (which of several: see ``sql/join_candidates.sql``),
* says whether numbers and ids of tokens agree,
* where the trainer did not receive ``r``, computes the statistics with ``r`` at the source,
* where it did, compares the two ``r``,
* where both sides recorded routes of a mixture of experts, counts how many are the same.

Without raw tokens on both sides, fingerprints of the ids decide about the match, and nothing is computed. A step that got
anything is marked dirty. Each batch is one transaction and doing it twice changes nothing; the queue is cut last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.schema import STATISTICS
from logprobe.monitor.alignment import align, joined_statistics, received_differences, source_logprobs
from logprobe.monitor.raw_files import empty_file
from logprobe.monitor.route_counts import no_routes, route_counts
from logprobe.monitor.store import Store
from logprobe.monitor.views import escape_glob

SAMPLES_PER_ROUND: Final = 50_000
TOKENS_PER_BATCH: Final = 4_000_000  # of both sides; some 25 bytes each while a batch is worked on

_LAYERS_OF_A_TOKEN: Final = 8  # so many layers of both sides take the memory of a token's log-probs, ids and masks

_KEY: Final = ("run", "step", "segment_id", "row", "rollout_segment", "rollout_row")
_WRITES: Final = ("join_update", "join_forget_statistics", "insert_statistics", "mark_dirty")


@dataclass(slots=True)
class JoinReport:
    """What one run did, in trained sequences; `remaining`: marks left on the queue."""

    linked: int = 0
    joined: int = 0  # got their r from the rollout record
    unaligned: int = 0  # numbers or ids of tokens differ
    remaining: int = 0
    seconds: float = 0.0


class Joiner:
    """Joins what ingest has queued. One per store, used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run_once(self, *, max_rounds: int | None = None) -> JoinReport:
        """Works the queue off, or `max_rounds` rounds of `SAMPLES_PER_ROUND` marks of it.

        Raises:
            StoreError: the store or the disk refused; the queue keeps what was not done.
        """
        started = time.perf_counter()
        report = JoinReport()
        rounds = 0
        while (high := self._next_round(report)) is not None and rounds != max_rounds:
            self._round(high, report)
            rounds += 1
        report.seconds = time.perf_counter() - started
        return report

    def _next_round(self, report: JoinReport) -> int | None:
        marks = self._store.read("join_marks", samples=SAMPLES_PER_ROUND).to_pylist()[0]
        report.remaining = marks["waiting"]
        high: int | None = marks["high"]
        return high

    def _round(self, high: int, report: JoinReport) -> None:
        # Between looking up where raw tokens lie and reading them, no file may go away.
        with self._store.holding_files():
            candidates = self._store.read("join_candidates", high=high)
            for batch in _batches(candidates):
                results = self._compare(batch)
                self._write(results)
                _count(results, report)
        with self._store.transaction() as cursor:
            self._store.execute(cursor, "join_done", high=high)

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
        lists = self._store.read(
            "join_lists",
            keys.append_column("number", pa.array(np.arange(batch.num_rows))).append_column(
                "with_routes", pc.greater(batch["route_layers"], 0)
            ),
            training_files=self._paths("training", batch["training_file"]),
            rollout_files=self._paths("rollout", batch["rollout_file"]),
        )
        return _results(batch.take(lists["number"]), lists)

    def _paths(self, kind: str, files: pa.ChunkedArray) -> list[str]:
        """Patterns of these files, and of the one without rows: it has the columns that an earlier logprobe did not write."""
        paths = [self._store.home.path / name for name in files.unique().to_pylist()]
        return [escape_glob(str(path)) for path in (*paths, empty_file(self._store.home, kind))]

    def _write(self, results: pa.Table) -> None:
        with self._store.transaction() as cursor:
            for name in _WRITES:
                self._store.execute(cursor, name, results)


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
        "token_match": pa.array(same, mask=~decided),
        "length_match": pa.array(fits),
        "received_max_abs_diff": pa.nulls(batch.num_rows, pa.float64()),
        **no_routes(batch.num_rows),
    }
    for pair in ("update", "backend", "total"):
        columns[pair] = pa.nulls(batch.num_rows, STATISTICS.field(pair).type)
    return pa.table(columns)


def _batches(candidates: pa.Table) -> Iterator[pa.Table]:
    """Consecutive rows with at most `TOKENS_PER_BATCH` tokens together, or one row with more; routes weigh as more tokens."""
    tokens = np.asarray(candidates["n_total"], dtype=np.int64) + np.asarray(candidates["n_tokens"], dtype=np.int64)
    tokens *= 1 + np.asarray(candidates["route_layers"], dtype=np.int64) // _LAYERS_OF_A_TOKEN
    number = (np.cumsum(tokens) - tokens) // TOKENS_PER_BATCH
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    for first, last in pairwise([*starts, len(number)]):
        yield candidates.slice(int(first), int(last - first))


def _count(results: pa.Table, report: JoinReport) -> None:
    sources = results["rollout_source"].to_pylist()
    report.linked += len(sources)
    report.joined += sources.count("joined")
    report.unaligned += sources.count("unaligned")
