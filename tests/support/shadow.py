"""The jobs of the store and `monitor.live` on the same segments: every value of both, bit by bit.

With `pytest --shadow` each store that a test fills is compared, whenever nothing waits in its queues and when it is closed.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.errors import QueryError, StoreError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.collectors.spool.segments import Segment, SegmentPath
from logprobe.monitor.analysis.step_job import StepJob
from logprobe.monitor.ingest import ingest
from logprobe.monitor.ingest.join import Joiner
from logprobe.monitor.ingest.late_marks import LateMarks
from logprobe.monitor.ingest.soundness import sound_rows
from logprobe.monitor.live import doubled
from logprobe.monitor.live.memory import Run
from logprobe.monitor.live.read import Read
from logprobe.monitor.live.records import ALIGNMENTS, AMBIGUOUS, BY_ID, BY_PARTS, BY_TOKENS, HAS, UNLINKED
from logprobe.monitor.live.rows import NONE
from logprobe.monitor.live.tick import Live
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.store.store import Store

BATCHES = 6  # in which segments are brought a second time, the last first
MOST_SEQUENCES = 1500  # of a run up to which each is looked at, and not the metrics alone
_HOW = {UNLINKED: None, BY_ID: "id", BY_PARTS: "parts", BY_TOKENS: "tokens", AMBIGUOUS: "ambiguous"}
_SOURCES = ("missing", "received", "joined", "unaligned")
_ROUTES = ("routes_match", "routes_expected", "routes_compared", "routes_equal")
_WAITING = """
SELECT (SELECT count(*) FROM dirty_steps) + (SELECT count(*) FROM join_queue) + (SELECT count(*) FROM version_queue) AS n
"""
_LEDGER = """
SELECT run, segment_id, kind, raw_file IS NULL AND rows > 0 AND kind IN ('training', 'rollout') AS without FROM segments
ORDER BY run, segment_id
"""
_TRAINED = """
SELECT segment_id, "row", step, rollout_source, rollout_segment, rollout_row, alignment, joined_by, token_match, length_match,
       received_max_abs_diff AS difference, routes_match, routes_expected, routes_compared, routes_equal
FROM training_sequences WHERE run = $run
"""
Values = dict[tuple[Any, ...], Any]


@dataclass
class Comparison:
    """How many values were compared, and those that differ: where, in the store, in memory."""

    values: int = 0
    different: list[tuple[str, tuple[Any, ...], Any, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # runs, by reason

    def add(self, what: str, stored: Values, live: Values) -> None:
        """Compares two tables by key; what only one of them has differs."""
        self.values += len(stored)
        for key in sorted(stored.keys() | live.keys(), key=repr):
            ours, theirs = stored.get(key, "absent"), live.get(key, "absent")
            if _bits(ours) != _bits(theirs):
                self.different.append((what, key, ours, theirs))


def compare(store: Store, segments: dict[str, Segment]) -> Comparison:
    """Compares every run of a store with what follows from its segments, all at once and one at a time."""
    result = Comparison()
    ledger: dict[str, list[dict[str, Any]]] = {}
    for row in store.query(_LEDGER).to_pylist():
        ledger.setdefault(row["run"], []).append(row)
    for run, rows in ledger.items():
        if reason := _unfit(store, run, rows, segments):
            result.left_out[reason] += 1
            continue
        of_run = [segments[row["segment_id"]] for row in rows]
        for batches in orders(of_run):
            _compare_run(store, run, batches, result)
    return result


def orders(segments: Sequence[Segment]) -> list[list[Sequence[Segment]]]:
    """All at once, and some at a time, the last first."""
    size = -(-len(segments) // BATCHES)
    return [[segments], [segments[max(end - size, 0) : end] for end in range(len(segments), 0, -size)]]


def _unfit(store: Store, run: str, rows: Sequence[dict[str, Any]], segments: dict[str, Segment]) -> str | None:
    if any(row["segment_id"] not in segments for row in rows):
        return "segments were read elsewhere"
    if any(row["without"] for row in rows):
        return "raw tokens are gone"
    for table in ("folded_steps", "sampled_sequences"):
        if store.query(f"SELECT 1 FROM {table} WHERE run = $run LIMIT 1", {"run": run}).num_rows:
            return "folded"
    return None


def _compare_run(store: Store, run: str, batches: Sequence[Sequence[Segment]], result: Comparison) -> None:
    live, metrics, summaries = Live(), {}, {}
    for batch in batches:
        for computed in live.tick([Read(segment, sound_rows(segment)) for segment in batch]):
            for place, (_, step) in enumerate(computed.steps):
                for key in KEYS:
                    value = float(computed.values[key][place])
                    metrics[step, key] = None if math.isnan(value) else value
                summaries[step, "tokens"] = int(computed.tokens[place])
                summaries[step, "sequences"] = int(computed.sequences[place])
                summaries[step, "time"] = _null(computed.times[place])
    of_run = live.memory.run(run)
    sql = "SELECT step, metric, value FROM step_metrics WHERE run = $run"
    stored = {(row["step"], row["metric"]): row["value"] for row in _rows(store, sql, run)}
    result.add("metrics", stored, metrics)
    sql = "SELECT step, tokens, sequences, epoch_us(time) AS time FROM step_summaries WHERE run = $run"
    names = ("tokens", "sequences", "time")
    result.add("summaries", {(r["step"], name): r[name] for r in _rows(store, sql, run) for name in names}, summaries)
    if sum(len(step.trained) for step in of_run.steps.values()) > MOST_SEQUENCES:
        result.left_out["too many sequences to look at each"] += 1
        return
    result.add("sequences", _stored_sequences(store, run), dict(live_sequences(of_run)))
    result.add("statistics", _stored_statistics(store, run), dict(_live_statistics(of_run)))
    sql = "SELECT kind = 'rollout' AS sampled, sum(sequences)::BIGINT AS n FROM doubled WHERE run = $run GROUP BY ALL"
    trained = sum(each.sequences for step in of_run.steps.values() for each in doubled.of_step(step))
    sampled = sum(each.sequences for each in doubled.of_rollouts(of_run))
    twice = {(is_sampled,): n for is_sampled, n in ((True, sampled), (False, trained)) if n}
    result.add("doubled", {(row["sampled"],): row["n"] for row in _rows(store, sql, run)}, twice)
    result.add("versions", _stored_versions(store, run), dict(_live_versions(of_run)))
    older = {
        (row["segment_id"], row["row"]): True
        for row in _rows(store, 'SELECT segment_id, "row" FROM older_sequences WHERE run = $run', run)
    }
    result.add("older", older, dict(_live_older(of_run)))


def _rows(store: Store, sql: str, run: str) -> list[dict[str, Any]]:
    return store.query(sql, {"run": run}).to_pylist()


def _stored_sequences(store: Store, run: str) -> Values:
    return {
        (row["segment_id"], row["row"], name): value
        for row in _rows(store, _TRAINED, run)
        for name, value in row.items()
        if name not in {"segment_id", "row", "step"}
    }


def live_sequences(run: Run) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for step in run.steps.values():
        rows = step.trained
        for row in np.flatnonzero(step.counted_S).tolist() if len(rows) else ():
            number, code, how = int(rows["link"][row]), int(rows["alignment"][row]), int(rows["how"][row])
            segment, place = (
                (None, None) if number < 0 else (run.sampled["segment"][number], int(run.sampled["row"][number]))
            )
            if how == BY_PARTS:
                segment, place = f"parts/{rows['segment'][row]}", int(rows["row"][row])
            found = {
                "rollout_source": _SOURCES[rows["source"][row]],
                "rollout_segment": segment,
                "rollout_row": place,
                "alignment": ALIGNMENTS[code] if code >= 0 else None,
                "joined_by": _HOW[how],
                "difference": _number(rows["difference"][row]),
                **{name: _boolean(rows[name][row]) for name in ("token_match", "length_match", "routes_match")},
                **{name: _whole(rows[name][row]) for name in _ROUTES[1:]},
            }
            for name, value in found.items():
                yield (rows["segment"][row], int(rows["row"][row]), name), value


def _stored_statistics(store: Store, run: str) -> Values:
    values: Values = {}
    for row in _rows(store, "SELECT * FROM statistics WHERE run = $run", run):
        key = (row["segment_id"], row["row"], row["pair"])
        values[(*key, "rows")] = values.get((*key, "rows"), 0) + 1
        values.update({(*key, c.name): row[c.name] for c in COLUMN_SPECS})
    return values


def _live_statistics(run: Run) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for step in run.steps.values():
        rows = step.trained
        for row in np.flatnonzero(step.counted_S).tolist() if len(rows) else ():
            for pair in PAIRS:
                if rows[HAS + pair][row]:
                    key = (rows["segment"][row], int(rows["row"][row]), pair)
                    yield (*key, "rows"), 1
                    for place, column in enumerate(COLUMN_SPECS):
                        value = rows[pair][row, place]
                        yield (*key, column.name), int(value) if column.count else float(value)


def _stored_versions(store: Store, run: str) -> Values:
    sql = 'SELECT segment_id, "row", spans FROM rollout_sequences WHERE run = $run AND parts IS NULL'
    return {
        (row["segment_id"], row["row"]): None
        if row["spans"] is None
        else tuple(tuple(s.values()) for s in row["spans"])
        for row in _rows(store, sql, run)
    }


def _live_versions(run: Run) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for number, spans in enumerate(run.spans):
        yield (run.sampled["segment"][number], int(run.sampled["row"][number])), spans


def _live_older(run: Run) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for step in run.steps.values():
        for row in np.flatnonzero(~step.counted_S).tolist() if len(step.trained) else ():
            yield (step.trained["segment"][row], int(step.trained["row"][row])), True


def _bits(value: Any) -> str:
    return repr(0.0 if isinstance(value, float) and value == 0 else value)


def _null(number: int) -> int | None:
    return None if number == NONE else number


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _boolean(value: Any) -> bool | None:
    return None if math.isnan(value) else bool(value)


def _whole(value: Any) -> int | None:
    return None if math.isnan(value) else int(value)


class Shadow:
    """The plugin: remembers segments that are ingested in this process, and compares stores with what follows from them."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self.values = self.compared = 0
        self.left_out: Counter[str] = Counter()
        self.different: dict[str, list[tuple[str, tuple[Any, ...], Any, Any]]] = {}
        self._test = ""
        self._busy = False

    def begin(self, patch: pytest.MonkeyPatch) -> None:
        read, compute, close = ingest.read_segment, StepJob.run_once, Store.close

        def remembered(where: SegmentPath) -> Segment:
            segment = read(where)
            self.segments[segment.segment_id] = segment
            return segment

        def computed(job: StepJob, **arguments: Any) -> Any:
            report = compute(job, **arguments)
            self._look(job._store)
            return report

        def closed(store: Store) -> None:
            if not self._busy and not store._closed and not store.read_only:
                self._finish(store)
            close(store)

        patch.setattr(ingest, "read_segment", remembered)
        patch.setattr(StepJob, "run_once", computed)
        patch.setattr(Store, "close", closed)

    def _finish(self, store: Store) -> None:
        """Does what waits: tests of a single job leave the rest to be done."""
        self._busy = True
        try:
            with suppress(Exception):
                if store.query("SELECT 1 FROM segments LIMIT 1").num_rows:
                    for _ in range(3):
                        LateMarks(store).run_once()
                        Joiner(store).run_once()
                        StepJob(store).run_once()
        finally:
            self._busy = False
        self._look(store)

    def _look(self, store: Store) -> None:
        if self._busy:
            return
        self._busy = True
        found = Comparison()
        try:
            if store.query(_WAITING)["n"][0].as_py():
                return
            found = compare(store, self.segments)
        except (QueryError, StoreError):  # as the test has it
            return
        except Exception as error:
            trace = traceback.format_exc().splitlines()[-7:]
            found.different.append(("error", (type(error).__name__,), "none", trace))
        finally:
            self._busy = False
        self.values += found.values
        self.compared += bool(found.values)
        self.left_out += found.left_out
        if found.different:
            self.different.setdefault(self._test, []).extend(found.different)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says how many values were compared, and where some differ."""
        write = terminalreporter.write_line
        write(f"shadow: {self.values} values of {self.compared} stores compared; runs left out: {dict(self.left_out)}")
        for test, found in self.different.items():
            kinds = Counter(what for what, *_ in found)
            write(f"shadow: {test}: {dict(kinds)}")
            for what, key, stored, live in _first_of_each(found):
                write(f"    {what} {key}: store {stored!r}, live {live!r}")


def _first_of_each(found: Iterable[tuple[str, tuple[Any, ...], Any, Any]], most: int = 4) -> Iterator[Any]:
    seen: Counter[str] = Counter()
    for each in found:
        seen[each[0]] += 1
        if seen[each[0]] <= most:
            yield each
