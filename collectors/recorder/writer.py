"""The recorder's thread: takes calls from the queue, builds tables, writes segments, and gives way under pressure.

Raw tokens go first: when the disk refuses or the queue is more than half full, training calls are reduced to
statistics. These, and small records, are kept in memory (bounded) and retried until the disk takes them. With a
`raw_fraction` below 1 they are reduced at once, all but a sample; that is no loss, and not counted as one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from logprobe.collectors.errors import InputError
from logprobe.collectors.health import LOGGER, Guard, HealthRow, Problem, RecorderHealth
from logprobe.collectors.recorder import batches as flat
from logprobe.collectors.recorder import records, tables
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.recorder.call_queue import CallQueue, FlushRequest, Left
from logprobe.collectors.recorder.capture import Captured
from logprobe.collectors.recorder.reduction import reduce, statistics_table
from logprobe.collectors.recorder.sampling import RawSample
from logprobe.collectors.shipping.autostart import ShipperAutostart
from logprobe.collectors.spool.segment_writer import SegmentWriter

HEARTBEAT_SECONDS: Final = 10.0
RETAINED_BYTES: Final = 16 << 20  # statistics kept while the disk refuses: some 60,000 sequences
_RETAINED_ROWS: Final = 20_000  # of each small kind
_ROWS: Final = 5_000  # of one kind in a segment, about
_FEW_CALLS: Final = 64  # are written at once
_LONG_WRITE: Final = 0.05  # seconds; a disk that takes longer gets fewer and larger segments
_LARGEST: Final = 3  # times `segment_tokens`: within the memory that a recorder may take
_STATISTICS_TOKENS: Final = 64  # a sequence's statistics weigh as much as so many raw tokens
_WRONG_CONTENT: Final = (InputError, pa.ArrowException, ValueError, TypeError, OverflowError)
_SAMPLED: Final = "raw tokens are sampled (raw_fraction); statistics of all other sequences are kept, nothing is lost"
Build: TypeAlias = Callable[[Sequence[Batch]], pa.Table]


@dataclass(slots=True)
class Pending:
    """What the thread has taken and not yet written."""

    training: list[Batch] = field(default_factory=list)
    rollout: list[Batch] = field(default_factory=list)
    reduced: list[Batch] = field(default_factory=list)
    statistics: deque[pa.Table] = field(default_factory=deque)
    rows: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    tokens: int = 0

    @property
    def empty(self) -> bool:
        """Whether everything taken is written."""
        return not (self.training or self.rollout or self.reduced or self.statistics or any(self.rows.values()))


class Writer:
    """Everything the recorder's thread does; used by that thread only, except for the counters."""

    def __init__(
        self,
        call_queue: CallQueue,
        segment_writer: SegmentWriter,
        *,
        rank: int | None,
        component: str,
        segment_tokens: int,
        raw_sample: RawSample,
        snapshot: Callable[[], RecorderHealth],
        shipper: ShipperAutostart,
        began: Callable[[], None],
    ) -> None:
        """`began`: called once, after the first record."""
        self.tokens_written = 0
        self.sequences_written = 0
        self.sequences_reduced = 0
        self.tokens_reduced = 0
        self.thread_seconds = 0.0
        self._call_queue = call_queue
        self._segment_writer = segment_writer
        self._rank = rank
        self._component = component
        self._segment_tokens = segment_tokens
        self._raw_sample = raw_sample
        self._snapshot = snapshot
        self._shipper = shipper
        self._began: Callable[[], None] | None = began
        self._pending = Pending()
        self._bfloat16_noted = False
        self._closing_said = False
        self._lost_number = 0  # newest accepted call of which something was lost
        self._heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS

    def run(self, flush_interval: float) -> None:
        """The thread's loop; ends after `close` was asked for and everything possible is written."""
        seconds = 0.0  # at once: of a process that dies in its first seconds is known that it was there
        while not self._call_queue.closing:
            self._call_queue.wake.wait(seconds)
            with self._call_queue.at_work, self._guard("thread"):
                self._cycle()
            self.thread_seconds = time.thread_time()
            seconds = min(flush_interval, HEARTBEAT_SECONDS)
        with self._call_queue.at_work, self._guard("thread"):
            self._finish()
        self._shipper.leave()
        self._call_queue.closed = True

    def _cycle(self) -> None:
        items = deque(self._call_queue.drain())
        while items:
            self._call_queue.at_work.give_way()
            if self._call_queue.out_of_time:
                self._abandon(items)
                break
            if self._call_queue.closing and not self._closing_said:
                self._say_closing(items)
            with self._guard("thread"):  # one call that goes wrong must not cost those behind it
                item = items.popleft()
                if isinstance(item, FlushRequest):
                    self._answer(item)
                else:
                    self._take(item)
                    self._say_began()
        self._beat()
        self._write_all()
        self._shipper.check()
        self._call_queue.capturer.tend()

    def _say_began(self) -> None:
        if self._began is not None:
            began, self._began = self._began, None
            began()

    def _finish(self) -> None:
        self._segment_writer.hurry()
        self._cycle()
        self.thread_seconds = time.thread_time()
        self._add_row("health", self._health_row(Problem("closed", "info", "closed cleanly"), self._snapshot()))
        self._write_all(last=True)
        if not self._durable:
            self._count_unwritten()
        self._call_queue.closed_ok = self._durable and self._lost_number <= self._call_queue.flushed_to

    def _abandon(self, items: Iterable[Captured | FlushRequest]) -> None:
        """There is no time left to write these; what they were is written instead."""
        left = Left.of(items)
        self._lost_number = self._call_queue.accepted_calls
        message = f"closing timed out, not written: {left}"
        self._call_queue.health.drop(
            "out_of_time", message, severity="error", step=left.first_step, details=left.by_kind, **left.size()
        )

    def _say_closing(self, items: Iterable[Captured | FlushRequest]) -> None:
        """How much is still to be written: a process that ends too early, by force, leaves nothing but this."""
        self._closing_said = True
        left = Left.of(items)
        if left.calls >= _FEW_CALLS or left.tokens > self._segment_tokens:
            problem = Problem("closing", "info", f"closing; still to be written: {left}", count=left.calls)
            self._add_row("health", self._health_row(problem, left.by_kind))
            self._write_rows("health")

    @property
    def _durable(self) -> bool:
        """Whether everything that was taken is on disk, fsynced."""
        return self._pending.empty and self._segment_writer.settled

    def _count_unwritten(self) -> None:
        sequences = sum(table.num_rows for table in self._pending.statistics)
        records = sum(len(rows) for kind, rows in self._pending.rows.items() if kind != "health")
        reason = self._segment_writer.refusal
        message = f"recorder closed with statistics of {sequences} sequences and {records} records unwritten: {reason}"
        self._call_queue.health.drop("unwritten", message, calls=records, sequences=sequences)
        LOGGER.error(message)

    def _answer(self, request: FlushRequest) -> None:
        ok = False
        try:
            self._write_all()
            ok = self._durable and self._lost_number <= request.since
        finally:
            self._call_queue.resolve(request, ok=ok)

    # --- Taking calls ---

    def _take(self, item: Captured) -> None:
        crowded = self._call_queue.crowded
        try:
            self._store(item, crowded=crowded)
        except _WRONG_CONTENT as error:
            self._lose(item, "bad_input", f"Recorder.{item.kind}: {error}")
        except BaseException:
            self._lose(item, "internal_error", f"Recorder.{item.kind}: failed in the recorder's thread")
            raise
        finally:
            item.release()
        if self._pending.tokens >= self._enough:
            self._write_sequences()
        if item.kind in self._pending.rows and len(self._pending.rows[item.kind]) >= _ROWS:
            self._write_rows(item.kind)

    @property
    def _enough(self) -> int:
        """Tokens of one segment: more of them where each takes the disk long."""
        return self._segment_tokens * min(1 + int(self._segment_writer.seconds / _LONG_WRITE), _LARGEST)

    def _store(self, item: Captured, *, crowded: bool) -> None:
        if item.kind not in ("training", "rollout"):
            self._add_row(item.kind, records.row_of(item))
            return
        batch = flat.decode(item)
        reducible = item.kind == "training" and "rollout_logprobs" in batch.floats
        if reducible and not self._raw_sample.everything:
            batch = self._reduce_unsampled(batch)
        self._note_bfloat16(batch)
        if batch.refused:
            self._call_queue.health.report("bad_versions", f"Recorder.{item.kind}: {batch.refused}", step=batch.step)
        if item.kind == "rollout":
            self._keep(batch, self._pending.rollout)
        elif reducible:
            self._store_reducible(batch, crowded=crowded)
        else:
            self._keep(batch, self._pending.training)  # its r comes with the rollout records, token by token

    def _keep(self, batch: Batch, target: list[Batch]) -> None:
        target.extend(batch.parts(self._segment_tokens))
        self._pending.tokens += batch.tokens

    def _store_reducible(self, batch: Batch, *, crowded: bool) -> None:
        pressure = (
            "disk_refused" if self._segment_writer.refusal is not None else "queue_half_full" if crowded else None
        )
        if not batch.sequences:
            return
        if pressure is None:
            self._keep(batch, self._pending.training)
        else:
            self._count_reduction(batch, f"raw tokens are reduced to statistics ({pressure})")
            self._keep(batch, self._pending.reduced)

    def _reduce_unsampled(self, batch: Batch) -> Batch:
        """Turn all but the sample into statistics; → what stays raw. Each sequence is in one of the two, never in
        both."""
        reduced = reduce(batch, self._rank)
        raw_S = self._raw_sample.choose(batch, reduced.pairs["backend"])
        sampled = batch.take(raw_S)
        sequences, tokens = batch.sequences - sampled.sequences, batch.tokens - sampled.tokens
        if sequences:
            self._pending.statistics.append(reduced.rows(~raw_S))
            self._pending.tokens += sequences * _STATISTICS_TOKENS
            self.tokens_reduced += tokens
            self._call_queue.health.report(
                "raw_sampled", _SAMPLED, severity="info", sequences=sequences, tokens=tokens, step=batch.step
            )
        return sampled

    def _training_table(self, batches: Sequence[Batch]) -> pa.Table:
        return tables.training_table(batches, self._rank)

    def _note_bfloat16(self, batch: Batch) -> None:
        names = sorted(name for name in batch.bfloat16 if name.endswith("logprobs"))
        if names and not self._bfloat16_noted:
            self._bfloat16_noted = True
            message = f"{', '.join(names)}: the rounding of bfloat16 log-probs exceeds what is measured; keep float32"
            self._call_queue.health.report("bfloat16_logprobs", message, step=batch.step)

    def _add_row(self, kind: str, row: Mapping[str, Any]) -> None:
        rows = self._pending.rows.setdefault(kind, [])
        rows.append(row)
        if len(rows) > _RETAINED_ROWS:
            del rows[0]
            self._lost_number = self._call_queue.accepted_calls
            self._call_queue.health.drop("retained_full", f"{kind}: too many records are waiting for the disk", calls=1)

    # --- Writing ---

    def _write_all(self, *, last: bool = False) -> None:
        """Small records first, then statistics, then raw tokens: in this order they matter."""
        self._collect_health(everything=last)
        self._segment_writer.settle()
        for kind in list(self._pending.rows):
            self._write_rows(kind)
        self._write_sequences()
        self._collect_health(everything=last)  # what came up on the way
        self._write_rows("health")

    def _write_sequences(self) -> None:
        """Statistics first: they are small and matter more."""
        pending = self._pending
        reduced, pending.reduced = pending.reduced, []
        training, pending.training = pending.training, []
        rollout, pending.rollout = pending.rollout, []
        pending.tokens = 0
        self._reduce(reduced)
        self._write_statistics()
        self._write_raw("training", training)
        self._write_raw("rollout", rollout)
        self._write_statistics()

    def _write_rows(self, kind: str) -> None:
        rows, self._pending.rows[kind] = self._pending.rows.get(kind, []), []
        if not rows or self._segment_writer.blocked:
            self._pending.rows[kind] = rows
            return
        with self._guard("thread"):  # rows that make no table are given up, or they would come back for ever
            table, rows = self._fitting(kind, rows)
            if rows and not self._segment_writer.write(kind, table):
                self._pending.rows[kind] = rows

    def _fitting(self, kind: str, rows: list[Mapping[str, Any]]) -> tuple[pa.Table, list[Mapping[str, Any]]]:
        """A table of the rows, without those of a wrong type: each of them costs no other."""
        try:
            return tables.rows_table(kind, rows), rows
        except _WRONG_CONTENT as error:
            if len(rows) == 1:
                self._lost_number = self._call_queue.accepted_calls
                self._call_queue.health.drop(
                    "bad_input", f"Recorder.{kind}: {error}", calls=1, step=rows[0].get("step")
                )
                return tables.rows_table(kind, []), []
        middle = len(rows) // 2
        good = [row for half in (rows[:middle], rows[middle:]) for row in self._fitting(kind, half)[1]]
        return tables.rows_table(kind, good), good

    def _write_raw(self, kind: str, batches: list[Batch]) -> None:
        build = self._training_table if kind == "training" else tables.rollout_table
        for group, table in self._tables(kind, batches, build):
            written = False
            with self._guard("thread"):
                written = self._segment_writer.write(kind, table)
            if written:
                self._count_written(group)
            else:
                self._give_up_raw(kind, group)

    def _tables(self, kind: str, batches: list[Batch], build: Build) -> Iterator[tuple[list[Batch], pa.Table]]:
        """A table per segment; a batch that makes no table is lost alone."""
        for group in grouped(batches, self._enough):
            table = self._attempt(kind, group, build)
            if table is not None:
                yield group, table
            elif len(group) > 1:
                for batch in group:
                    yield from self._tables(kind, [batch], build)

    def _attempt(self, kind: str, group: list[Batch], build: Build) -> pa.Table | None:
        error: Exception | None = None
        with self._guard("thread"):
            try:
                return build(group)
            except _WRONG_CONTENT as wrong:
                error = wrong
        if len(group) == 1 or error is None:
            for batch in group:
                self._lose(batch, "bad_input", f"Recorder.{kind}: {error or 'failed in the recorder thread'}")
        return None

    def _count_written(self, group: list[Batch]) -> None:
        self.sequences_written += sum(batch.sequences for batch in group)
        self.tokens_written += sum(batch.tokens for batch in group)

    def _give_up_raw(self, kind: str, group: list[Batch]) -> None:
        reducible: list[Batch] = []
        for batch in group:
            if kind == "training" and "rollout_logprobs" in batch.floats:
                self._count_reduction(batch, "raw tokens are reduced to statistics (disk_refused)")
                reducible.append(batch)
            else:
                self._lose(batch, "raw_dropped", f"raw {kind} tokens are dropped: {self._segment_writer.refusal}")
        self._reduce(reducible)

    def _reduce(self, batches: list[Batch]) -> None:
        for _, table in self._tables("training", batches, lambda group: statistics_table(group, self._rank)):
            self._pending.statistics.append(table)

    def _write_statistics(self) -> None:
        waiting = self._pending.statistics
        if waiting and not self._segment_writer.blocked:
            table = pa.concat_tables(waiting).combine_chunks()
            if self._segment_writer.write("statistics", table):
                self.sequences_reduced += table.num_rows
                waiting.clear()
        excess = sum(table.nbytes for table in waiting) - RETAINED_BYTES
        while len(waiting) > 1 and excess > 0:
            oldest = waiting.popleft()
            excess -= oldest.nbytes
            self._drop_statistics(oldest)

    def _drop_statistics(self, table: pa.Table) -> None:
        message = f"statistics kept for a failing disk exceed {RETAINED_BYTES >> 20} MiB; the oldest are dropped"
        step = table["step"][0].as_py()
        self._call_queue.health.drop("statistics_dropped", message, sequences=table.num_rows, step=step)

    # --- Counting ---

    def _guard(self, where: str) -> Guard:
        return Guard(self._call_queue.health, where, cost=False)

    def _count_reduction(self, batch: Batch, message: str) -> None:
        self._lost_number = max(self._lost_number, batch.number)
        self.tokens_reduced += batch.tokens
        health = self._call_queue.health
        health.drop("raw_reduced", message, sequences=batch.sequences, tokens=batch.tokens, step=batch.step)

    def _lose(self, item: Captured | Batch, reason: str, message: str) -> None:
        self._lost_number = max(self._lost_number, item.number)
        health = self._call_queue.health
        health.drop(reason, message, calls=1, sequences=item.sequences, tokens=item.tokens, step=item.step)

    def _collect_health(self, *, everything: bool = False) -> None:
        for problem in self._call_queue.health.due(everything=everything):
            self._call_queue.health.log(problem)
            self._add_row("health", self._health_row(problem, None))

    def _beat(self) -> None:
        if time.monotonic() >= self._heartbeat_at:
            self._heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS
            self._add_row("health", self._health_row(Problem("heartbeat", "info", "alive"), self._snapshot()))

    def _health_row(self, problem: Problem, details: Mapping[str, object] | None) -> HealthRow:
        return problem.row(component=self._component, details=details)


def grouped(batches: Sequence[Batch], tokens: int) -> list[list[Batch]]:
    """Batches in groups of about `tokens` tokens: one group is one segment."""
    groups: list[list[Batch]] = []
    room = 0
    for batch in batches:
        if room <= 0:
            groups.append([])
            room = tokens
        groups[-1].append(batch)
        room -= batch.tokens
    return groups
