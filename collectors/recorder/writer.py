"""Recorder's thread: it takes calls from the queue, converts them to tables, and reduces data under pressure.

Under pressure raw tokens are given up first. When the disk refuses or the queue is more than half full, training calls
are reduced to statistics. Statistics and small records wait in the outbox until the disk accepts them. With a
`raw_fraction` below 1, all calls outside a sample are reduced immediately. This does not count as a loss.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logprobe.collectors.errors import InputError
from logprobe.collectors.health import LOGGER, Guard, Problem, RecorderHealth
from logprobe.collectors.recorder import batches as flat
from logprobe.collectors.recorder import records, tables
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.recorder.call_queue import CallQueue, FlushRequest, Left
from logprobe.collectors.recorder.capture import Captured
from logprobe.collectors.recorder.outbox import KEPT_BYTES, Outbox
from logprobe.collectors.recorder.reduction import RawSample, reduce
from logprobe.collectors.recorder.settings import Settings
from logprobe.collectors.shipping.autostart import ShipperAutostart
from logprobe.collectors.spool.segments import SpoolWriter

HEARTBEAT_SECONDS: Final = 10.0
_ROWS: Final = 5_000  # of one kind in a segment, about
_FEW_CALLS: Final = 64  # are written at once
_LONG_WRITE: Final = 0.05  # seconds; a disk that takes longer gets fewer and larger segments
_LARGEST: Final = 3  # times `segment_tokens`: within the memory that a recorder may take
_STATISTICS_TOKENS: Final = 64  # a sequence's statistics weigh as much as so many raw tokens
_WRONG_CONTENT: Final = (InputError, pa.ArrowException, ValueError, TypeError, OverflowError)
_RAW: Final = ("training", "rollout")
_SAMPLED: Final = "raw tokens are sampled (raw_fraction); statistics of all other sequences are kept, nothing is lost"


class Writer:
    """Work of the recorder's thread. Only that thread uses it, except for the counters."""

    def __init__(
        self,
        settings: Settings,
        call_queue: CallQueue,
        spool: SpoolWriter,
        *,
        snapshot: Callable[[], RecorderHealth],
        shipper: ShipperAutostart,
        began: Callable[[], None],
    ) -> None:
        """Set up the writer. `began`: function called once, after the first record."""
        self.outbox = Outbox(spool, call_queue.health, self._lose_kept)
        self.tokens_written = 0
        self.sequences_written = 0
        self.sequences_reduced = 0
        self.tokens_reduced = 0
        self.thread_seconds = 0.0
        self._settings = settings
        self._call_queue = call_queue
        self._health = call_queue.health
        self._raw_sample = RawSample(settings.raw_fraction, settings.worst_sequences)
        self._snapshot = snapshot
        self._shipper = shipper
        self._began: Callable[[], None] | None = began
        self._raw: dict[str, list[Batch]] = {kind: [] for kind in _RAW}
        self._tokens = 0  # of these, and of the statistics that wait
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        self._bfloat16_noted = False
        self._closing_said = False
        self._lost_number = 0  # newest accepted call of which something was lost
        self._heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS

    def run(self, flush_interval: float) -> None:
        """Loop until `close` is requested and all possible data is written."""
        seconds = 0.0  # at once: of a process that dies in its first seconds is known that it was there
        while not self._call_queue.closing:
            self._call_queue.wake.wait(seconds)
            with self._call_queue.at_work, self._guard():
                self._cycle()
            self.thread_seconds = time.thread_time()
            seconds = min(flush_interval, HEARTBEAT_SECONDS)
        with self._call_queue.at_work, self._guard():
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
            with self._guard():  # one call that goes wrong must not cost those behind it
                item = items.popleft()
                if isinstance(item, FlushRequest):
                    self._answer(item)
                else:
                    self._take(item)
                    self._say_began()
        if time.monotonic() >= self._heartbeat_at:
            self._heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS
            self._say(Problem("heartbeat", "info", "alive"), self._snapshot())
        self._write_all()
        self._shipper.check()
        self._call_queue.ring.tend()

    def _say_began(self) -> None:
        if self._began is not None:
            began, self._began = self._began, None
            began()

    def _finish(self) -> None:
        self.outbox.hurry()
        self._cycle()
        self.thread_seconds = time.thread_time()
        self._say(Problem("closed", "info", "closed cleanly"), self._snapshot())
        self._write_all(last=True)
        if not self._durable:
            self._count_unwritten()
        self._call_queue.closed_ok = self._durable and self._lost_number <= self._call_queue.flushed_to

    def _abandon(self, items: Iterable[Captured | FlushRequest]) -> None:
        """Write a summary of these calls in their place, because the time limit has passed."""
        left = Left.of(items)
        self._lost_number = self._call_queue.accepted_calls
        message = f"closing timed out, not written: {left}"
        step = None if left.steps is None else left.steps[0]
        self._health.drop("out_of_time", message, severity="error", step=step, details=left.by_kind, **left.size)

    def _say_closing(self, items: Iterable[Captured | FlushRequest]) -> None:
        """Report the amount of unwritten data, as the only trace if the process is killed."""
        self._closing_said = True
        left = Left.of(items)
        if left.size["calls"] >= _FEW_CALLS or left.size["tokens"] > self._settings.segment_tokens:
            problem = Problem("closing", "info", f"closing; still to be written: {left}", count=left.size["calls"])
            self._say(problem, left.by_kind)
            self._write_rows()

    @property
    def _durable(self) -> bool:
        return not (any(self._raw.values()) or any(self._rows.values())) and self.outbox.durable

    def _count_unwritten(self) -> None:
        waiting = self.outbox.waiting()
        waiting.pop("health", None)
        sequences, records_ = waiting.pop("statistics", 0), sum(waiting.values())
        reason = self.outbox.refusal
        message = f"recorder closed with statistics of {sequences} sequences and {records_} records unwritten: {reason}"
        self._health.drop("unwritten", message, calls=records_, sequences=sequences)
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
            if item.kind in _RAW:
                self._take_batch(item, crowded=crowded)
            else:
                self._rows.setdefault(item.kind, []).append(records.row_of(item))
        except _WRONG_CONTENT as error:
            self._lose(item, "bad_input", f"Recorder.{item.kind}: {error}")
        except BaseException:
            self._lose(item, "internal_error", f"Recorder.{item.kind}: failed in the recorder's thread")
            raise
        finally:
            self._call_queue.capturer.release(item)
        if self._tokens >= self._enough:
            self._write_sequences()
        if len(self._rows.get(item.kind, ())) >= _ROWS:
            self._write_rows()

    @property
    def _enough(self) -> int:
        """Number of tokens of one segment, larger if the disk is slow per segment."""
        return self._settings.segment_tokens * min(1 + int(self.outbox.seconds / _LONG_WRITE), _LARGEST)

    def _take_batch(self, item: Captured, *, crowded: bool) -> None:
        batch = flat.decode(item)
        if item.kind == "training" and "rollout_logprobs" in batch.floats:
            batch = self._reduced(batch, crowded=crowded)
        self._note_bfloat16(batch)
        if batch.refused:
            self._health.report("bad_versions", f"Recorder.{item.kind}: {batch.refused}", step=batch.step)
        if batch.sequences:
            self._raw[item.kind].extend(batch.parts(self._settings.segment_tokens))
            self._tokens += batch.tokens

    def _reduced(self, batch: Batch, *, crowded: bool) -> Batch:
        """Reduce sequences outside the sample to statistics, or all of them under pressure. Return the raw ones.

        Each sequence is either raw or reduced.
        """
        refused = self.outbox.refusal is not None
        if not batch.sequences or (self._raw_sample.everything and not (refused or crowded)):
            return batch
        reduced = reduce(batch, self._settings.rank)
        raw_S = np.ones(batch.sequences, np.bool_)
        if not self._raw_sample.everything:
            raw_S = self._raw_sample.choose(batch, reduced.pairs["backend"])
        raw = batch.take(raw_S)
        self._count_sampled(batch.sequences - raw.sequences, batch.tokens - raw.tokens, batch.step)
        if refused or crowded:
            self._count_reduction(raw, "disk_refused" if refused else "queue_half_full")
            raw_S[:] = False
            raw = batch.take(raw_S)
        self._keep_statistics(reduced.rows(~raw_S))
        return raw

    def _keep_statistics(self, table: pa.Table) -> None:
        self.outbox.keep("statistics", table)
        self.sequences_reduced += table.num_rows
        self._tokens += table.num_rows * _STATISTICS_TOKENS

    def _count_sampled(self, sequences: int, tokens: int, step: int | None) -> None:
        if sequences:
            self.tokens_reduced += tokens
            self._health.report("raw_sampled", _SAMPLED, severity="info", sequences=sequences, tokens=tokens, step=step)

    def _note_bfloat16(self, batch: Batch) -> None:
        names = sorted(name for name in batch.bfloat16 if name.endswith("logprobs"))
        if names and not self._bfloat16_noted:
            self._bfloat16_noted = True
            message = f"{', '.join(names)}: the rounding of bfloat16 log-probs exceeds what is measured; keep float32"
            self._health.report("bfloat16_logprobs", message, step=batch.step)

    # --- Writing ---

    def _write_all(self, *, last: bool = False) -> None:
        """Write small records first, then statistics, then raw tokens, in order of importance."""
        self._collect_health(everything=last)
        self.outbox.settle()
        self._write_rows()
        self._write_sequences()
        self._collect_health(everything=last)  # what came up on the way
        self._write_rows()

    def _write_rows(self) -> None:
        rows, self._rows = self._rows, {}
        for kind, some in rows.items():
            with self._guard():  # rows that make no table are given up, or they would come back for ever
                self.outbox.keep(kind, self._rows_table(kind, some))
        self.outbox.send()

    def _rows_table(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return a table of the rows, without rows of a wrong type, which are counted as dropped."""
        try:
            return tables.rows_table(kind, rows)
        except _WRONG_CONTENT as error:
            if len(rows) > 1:
                return pa.concat_tables([self._rows_table(kind, [row]) for row in rows])
            self._lost_number = self._call_queue.accepted_calls
            self._health.drop("bad_input", f"Recorder.{kind}: {error}", calls=1, step=rows[0].get("step"))
            return tables.rows_table(kind, [])

    def _write_sequences(self) -> None:
        """Write statistics first, which are small and matter more, then raw tokens."""
        raw, self._raw = self._raw, {kind: [] for kind in _RAW}
        self._tokens = 0
        self.outbox.send()
        for kind, some in raw.items():
            for group in grouped(some, self._enough):
                self._write_raw(kind, group)
        self.outbox.send()

    def _write_raw(self, kind: str, group: list[Batch]) -> None:
        """Write one segment. Only a batch that cannot become a table is dropped."""
        written, error = None, "failed in the recorder's thread"
        with self._guard():
            try:
                written = self.outbox.write(kind, tables.batch_table(kind, group, self._settings.rank))
            except _WRONG_CONTENT as wrong:
                error = str(wrong)
        if written:
            self.sequences_written += sum(batch.sequences for batch in group)
            self.tokens_written += sum(batch.tokens for batch in group)
        elif written is None and len(group) == 1:
            self._lose(group[0], "bad_input", f"Recorder.{kind}: {error}")
        else:
            for batch in group:
                if written is None:
                    self._write_raw(kind, [batch])
                else:
                    self._give_up_raw(kind, batch)

    def _give_up_raw(self, kind: str, batch: Batch) -> None:
        if kind == "training" and "rollout_logprobs" in batch.floats:
            with self._guard():
                self._keep_statistics(reduce(batch, self._settings.rank).table)
                self._count_reduction(batch, "disk_refused")
                return
        self._lose(batch, "raw_dropped", f"raw {kind} tokens are dropped: {self.outbox.refusal}")

    # --- Counting ---

    def _guard(self) -> Guard:
        return Guard(self._health, "thread", cost=False)

    def _count_reduction(self, batch: Batch, pressure: str) -> None:
        self._lost_number = max(self._lost_number, batch.number)
        self.tokens_reduced += batch.tokens
        message = f"raw tokens are reduced to statistics ({pressure})"
        self._health.drop("raw_reduced", message, sequences=batch.sequences, tokens=batch.tokens, step=batch.step)

    def _lose(self, item: Captured | Batch, reason: str, message: str) -> None:
        self._lost_number = max(self._lost_number, item.number)
        self._health.drop(reason, message, calls=1, sequences=item.sequences, tokens=item.tokens, step=item.step)

    def _lose_kept(self, kind: str, table: pa.Table) -> None:
        self._lost_number = self._call_queue.accepted_calls
        message = f"{kind} kept for a failing disk exceed {KEPT_BYTES >> 20} MiB; the oldest are dropped"
        if kind == "statistics":
            step = table["step"][0].as_py()
            self._health.drop("statistics_dropped", message, sequences=table.num_rows, step=step)
        else:
            self._health.drop("retained_full", message, calls=table.num_rows)

    def _collect_health(self, *, everything: bool = False) -> None:
        for problem in self._health.due(everything=everything):
            self._health.log(problem)
            self._say(problem, None)

    def _say(self, problem: Problem, details: Mapping[str, object] | None) -> None:
        self._rows.setdefault("health", []).append(problem.row(self._settings.component, details))


def grouped(batches: Sequence[Batch], tokens: int) -> list[list[Batch]]:
    """Return batches in groups of about `tokens` tokens. Each group becomes one segment."""
    groups: list[list[Batch]] = []
    room = 0
    for batch in batches:
        if room <= 0:
            groups.append([])
            room = tokens
        groups[-1].append(batch)
        room -= batch.tokens
    return groups
