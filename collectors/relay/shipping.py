"""Sends segments of a spool, oldest first, and forgets those that the service acknowledged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import SegmentError, ServiceUnavailableError
from logprobe.collectors.relay import protocol
from logprobe.collectors.relay.connection import Connection
from logprobe.collectors.relay.pacing import Bandwidth, Compression
from logprobe.collectors.relay.protocol import Outcome
from logprobe.collectors.relay.spool_queue import SpoolQueue, Waiting
from logprobe.collectors.spool.safe_read import read_regular

_LEAST_SECONDS: Final = 30.0  # for one upload
_SLOWEST: Final = 64 << 10  # bytes per second: an upload that is slower is cut off and tried again
_DENIED_SECONDS: Final = 30.0  # before a run is tried again whose segments the token may not write


@dataclass(slots=True)
class Counts:
    """What was done since the relay started."""

    segments: int = 0
    nbytes: int = 0
    sent: int = 0  # bytes on the wire, after compression
    refused: int = 0
    denied: int = 0


@dataclass(frozen=True, slots=True)
class Shipped:
    """What one upload came to."""

    stored: list[Waiting] = field(default_factory=list)
    refused: list[tuple[Waiting, str]] = field(default_factory=list)  # will never be taken; why
    denied: list[tuple[Waiting, str]] = field(default_factory=list)
    later: str | None = None  # why the service takes nothing now


class Shipper:
    """One thread's way from the spool to the service."""

    def __init__(
        self, queue: SpoolQueue, connection: Connection, bandwidth: Bandwidth, compression: Compression | None = None
    ) -> None:
        self.counts = Counts()
        self._queue = queue
        self._connection = connection
        self._bandwidth = bandwidth
        self._compression = compression or Compression()
        self._denied_until: dict[str, float] = {}  # run → on the monotonic clock

    def due(self) -> list[Waiting]:
        """What may be sent now, oldest first."""
        now = time.monotonic()
        self._denied_until = {run: until for run, until in self._denied_until.items() if until > now}
        return [waiting for waiting in self._queue.waiting() if waiting.where.run not in self._denied_until]

    def ship(self, waiting: Sequence[Waiting]) -> Shipped:
        """Sends the first ones, as many as make one upload, and waits for the answer.

        Raises `ServiceUnavailableError` or `ConfigurationError`; then the service may have some of them, and all are sent again.
        """
        batch = _first(waiting)
        size = sum(each.nbytes for each in batch)
        started = time.monotonic()
        writer, answers = self._connection.upload(_LEAST_SECONDS + size / _SLOWEST)
        before = self.counts.sent
        try:
            unreadable = self._write(writer, batch)
            writer.done_writing()
            answer = answers.read()
            writer.close()
        except (pa.ArrowException, OSError) as error:
            raise self._connection.failed(error) from None
        self._compression.sent(self.counts.sent - before, time.monotonic() - started)
        return self._settle(batch, _outcomes(answer), unreadable)

    def _write(self, writer: Any, batch: Sequence[Waiting]) -> dict[str, str]:
        """Sends a batch; → what could not be sent, and why."""
        unreadable: dict[str, str] = {}
        for waiting in batch:
            try:
                data = pa.py_buffer(read_regular(waiting.where.path))
            except SegmentError as error:
                unreadable[waiting.name] = str(error)
                continue
            except OSError:  # gone, or not to be read now: it is found again if it is there
                continue
            for chunk in self._chunks(waiting.name, data):
                writer.write_batch(chunk)
        return unreadable

    def _chunks(self, name: str, data: pa.Buffer) -> Iterator[pa.RecordBatch]:
        for start in range(0, max(data.size, 1), protocol.CHUNK_BYTES):
            part = data.slice(start, min(protocol.CHUNK_BYTES, data.size - start))
            codec, small = self._compression.apply(part)
            self._bandwidth.spend(small.size)
            self.counts.sent += small.size
            yield protocol.chunk(name, data.size, part.size, codec, small)

    def _settle(self, batch: Sequence[Waiting], outcomes: dict[str, Outcome], unreadable: dict[str, str]) -> Shipped:
        shipped = Shipped()
        later = None
        for waiting in batch:
            outcome = outcomes.get(waiting.name)
            if waiting.name in unreadable:
                shipped.refused.append((waiting, unreadable[waiting.name]))
            elif outcome is None:
                continue
            elif outcome.status == "stored":
                shipped.stored.append(waiting)
            elif outcome.status == "refused":
                shipped.refused.append((waiting, outcome.words))
            elif outcome.status == "denied":
                shipped.denied.append((waiting, outcome.words))
                self._denied_until[waiting.where.run] = time.monotonic() + _DENIED_SECONDS
            else:
                later = outcome.words
        self._queue.forget(shipped.stored)
        self._count(shipped)
        return Shipped(shipped.stored, shipped.refused, shipped.denied, later)

    def _count(self, shipped: Shipped) -> None:
        self.counts.segments += len(shipped.stored)
        self.counts.nbytes += sum(waiting.nbytes for waiting in shipped.stored)
        self.counts.refused += len(shipped.refused)
        self.counts.denied += len(shipped.denied)


def _first(waiting: Sequence[Waiting]) -> list[Waiting]:
    batch: list[Waiting] = []
    size = 0
    for each in waiting:
        batch.append(each)
        size += each.nbytes
        if size >= protocol.BATCH_BYTES or len(batch) >= protocol.BATCH_SEGMENTS:
            break
    return batch


def _outcomes(answer: Any) -> dict[str, Outcome]:
    """By segment. Raises `ServiceUnavailableError`: what is not answered was not acknowledged."""
    try:
        rows = json.loads(answer.to_pybytes())["segments"]
        return {
            str(row["segment"]): Outcome(str(row["segment"]), row["status"], str(row.get("words", ""))) for row in rows
        }
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise ServiceUnavailableError("the service ended the upload without saying what became of it") from error
