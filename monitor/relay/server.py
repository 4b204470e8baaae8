"""The receiver's Flight server: TLS only, a token on every call, nothing but uploads, ``sync`` and ``directives``."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from logprobe.collectors.directives import stopped_runs
from logprobe.collectors.errors import SegmentError, StoreError
from logprobe.collectors.relay import protocol
from logprobe.collectors.relay.protocol import Outcome
from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.relay.exchanges import Exchanges
from logprobe.monitor.relay.incoming import BusyError, Incoming, Intake, place_of, quietly_closed, raw_bytes
from logprobe.monitor.relay.listening import Connections, Observations
from logprobe.monitor.relay.tokens import Writer, Writers

CALLS: Final = 512  # at a time, of all writers
CALLS_OF_WRITER: Final = 256
_SYNC_BYTES: Final = 4 << 20
_NAME: Final = 120  # characters of a node's name
_RUN_BYTES: Final = 1024
_PER_NODE: Final = 0.005  # seconds of pause between two calls of a node, for each node there is
_HEARD_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM of certificate and key."""

    certificate: bytes
    key: bytes


class _Token(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class _Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Hands the token to the two calls that there are, which know who calls; every other call ends here."""

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Token:
        if info.method not in {flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_ACTION}:
            raise flight.FlightUnauthorizedError(
                "relays upload segments and exchange marks, trainers ask for directives; there is nothing else here"
            )
        given: Any = headers.get("authorization", [""])[0]
        text = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
        return _Token(text.removeprefix("Bearer "))


class RelayServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens as soon as it is made; `port` says where; `shutdown()` ends it."""

    def __init__(
        self,
        home: Home,
        intake: Intake,
        writers: Callable[[], Writers],
        observations: Observations,
        connections: Connections,
        *,
        url: str,
        tls: Tls,
    ) -> None:
        """`writers`: as they are now."""
        super().__init__(url, tls_certificates=[(tls.certificate, tls.key)], middleware={"token": _Tokens()})
        self._home = home
        self._intake = intake
        self._writers = writers
        self._observations = observations
        self._connections = connections
        self._exchanges = Exchanges(home)
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    # --- segments ---

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """One upload."""
        with self._call(context) as who:
            if descriptor.path[:1] != [protocol.UPLOAD.encode()]:
                raise self._refused(context, who.name, "upload", "not an upload of segments")
            upload = _Upload(self._intake, self._home, lambda: self._caller(context))
            try:
                outcomes = self._received(upload, reader)
            except flight.FlightUnauthenticatedError:
                raise
            except pa.ArrowException as error:
                raise self._refused(context, who.name, "upload", f"a broken stream: {error}") from error
            finally:
                quietly_closed(upload.incoming)
            for outcome in outcomes:
                if outcome.status in {"refused", "denied"}:
                    subject = f"segment ({upload.reasons.get(outcome.segment, outcome.status)})"
                    self._observations.refused(who.name, subject, context.peer(), f"{outcome.segment}: {outcome.words}")
            writer.write(pa.py_buffer(json.dumps({"segments": [asdict(outcome) for outcome in outcomes]}).encode()))

    def _received(self, upload: _Upload, reader: flight.MetadataRecordBatchReader) -> list[Outcome]:
        if reader.schema != protocol.CHUNKS:
            raise pa.ArrowInvalid("its columns are not those of segments")
        while True:
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                return upload.finish()
            for number in range(batch.num_rows):
                row = {name: batch[name][number].as_py() for name in ("segment", "size", "raw", "codec")}
                data = batch["data"][number].as_buffer()
                upload.add(row, pa.py_buffer(b"") if data is None else data)

    # --- marks, directives, how far a node is behind ---

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """``sync`` or ``directives``."""
        with self._call(context) as who:
            answer = {protocol.SYNC: self._sync, protocol.DIRECTIVES: self._directives}.get(action.type)
            if answer is None or action.body.size > _SYNC_BYTES:
                raise self._refused(context, who.name, "action", f"{action.type!r} of {action.body.size:,} bytes")
            try:
                document = answer(context, who, json.loads(action.body.to_pybytes()))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise self._refused(context, who.name, action.type, f"an invalid request ({error})") from error
            return iter([json.dumps(document).encode()])

    def _directives(
        self, context: flight.ServerCallContext, who: Writer, asked: Mapping[str, Any]
    ) -> dict[str, object]:
        run = asked["run"]
        if not _is_own(run, who):
            raise self._refused(context, who.name, protocol.DIRECTIVES, f"run {run[:200]!r} is not one of its own")
        return dict(self._exchanges.directives(run))

    def _sync(self, context: flight.ServerCallContext, who: Writer, asked: Mapping[str, Any]) -> dict[str, object]:
        now = time.time()
        node = str(asked["node"])[:_NAME]
        if self._observations.is_shared(node, str(asked.get("relay"))[:_NAME]):
            words = f"another relay also calls itself {node!r}; write ,node=NAME in LOGPROBE_SERVICE on each"
            asked = {**asked, "problem": asked.get("problem") or words}
        runs: dict[str, object] = {}
        if len(asked["runs"]) > protocol.SYNC_RUNS:
            raise ValueError(f"more than {protocol.SYNC_RUNS} runs in one call")
        for run, report in asked["runs"].items():
            if not _is_own(run, who):
                self._observations.refused(
                    who.name, "marks", context.peer(), f"run {run[:200]!r} is not one of its own"
                )
                continue
            if self._exchanges.is_deleted(run):
                continue
            runs[run], refused = self._exchanges.answer(run, report["marks"], int(report["cursor"]))
            for words in refused:
                self._observations.refused(who.name, "marks", context.peer(), words)
            self._observations.node(run, node, _report(who, asked, report["queue"], now))
        stopped = [run for run in stopped_runs(self._home.path) if _is_own(run, who)]
        pause = self._observations.nodes_heard(_HEARD_SECONDS) * _PER_NODE
        return {"protocol": protocol.PROTOCOL, "time": now, "again": max(1.0, pause), "runs": runs, "stopped": stopped}

    # --- who may call, and how often ---

    @contextmanager
    def _call(self, context: flight.ServerCallContext) -> Iterator[Writer]:
        who = self._caller(context)
        with self._lock:
            busy = self._calls.total() >= CALLS or self._calls[who.name] >= CALLS_OF_WRITER
            self._calls[who.name] += not busy
        if busy:
            raise flight.FlightUnavailableError("too many calls at a time; again later")
        try:
            yield who
        finally:
            with self._lock:
                self._calls[who.name] -= 1

    def _caller(self, context: flight.ServerCallContext) -> Writer:
        """Who calls, by the tokens as they are now."""
        who = self._writers().find(context.get_middleware("token").text, datetime.now(UTC))
        if who is None:
            words = "a token that is missing, wrong or no longer valid"
            self._observations.refused("nobody known", "call", context.peer(), words)
            raise flight.FlightUnauthenticatedError("the token is missing, wrong or no longer valid")
        self._connections.used(context.peer())
        return who

    def _refused(self, context: flight.ServerCallContext, who: str, what: str, words: str) -> flight.FlightServerError:
        self._observations.refused(who, what, context.peer(), words)
        return flight.FlightServerError(f"refused: {words}")


class _Upload:
    """The segments of one call.

    A call may last for long: whether its token still counts is asked for every segment, and before any of them count.
    """

    def __init__(self, intake: Intake, home: Home, caller: Callable[[], Writer]) -> None:
        """`caller`: who calls; raises once the token does not count any more."""
        self._intake = intake
        self._home = home
        self._caller = caller
        self._tombstones = Tombstones(home)
        self._outcomes: dict[str, Outcome] = {}
        self.reasons: dict[str, str] = {}  # of segments that were refused: see `SegmentError`
        self._verified: dict[str, Incoming] = {}
        self._open: tuple[str, Incoming | None] | None = None  # the segment whose chunks come now; None: it was refused

    @property
    def incoming(self) -> list[Incoming]:
        """Everything that has to be closed."""
        under_way = [self._open[1]] if self._open and self._open[1] else []
        return [*self._verified.values(), *under_way]

    def add(self, row: Mapping[str, Any], data: pa.Buffer) -> None:
        """One chunk."""
        name = str(row["segment"])
        try:
            if self._open is None or self._open[0] != name:
                self._begin(name, row["size"])
            under_way = self._open[1] if self._open else None
            if under_way is not None:
                under_way.add(raw_bytes(dict(row), data))
                if under_way.complete:
                    self._intake.verify(under_way)
                    self._verified[name] = under_way
                    self._open = (name, None)
        except SegmentError as error:
            self.reasons[name] = error.reason
            self._end(name, Outcome(name, "refused", str(error)))
        except BusyError as error:
            self._end(name, Outcome(name, "later", str(error)))
        except OSError as error:
            self._end(name, Outcome(name, "later", f"the service's disk: {error.strerror or error}"))

    def _begin(self, name: str, size: Any) -> None:
        self._drop_open("another segment began before its end")
        self._open = (name, None)
        if len(self._outcomes) + len(self._verified) >= 2 * protocol.BATCH_SEGMENTS:
            raise pa.ArrowInvalid("more segments than one upload may have")
        if name in self._outcomes or name in self._verified:
            raise SegmentError("foreign", f"{name[:200]}: sent twice in one upload")
        place = place_of(self._home, name)
        if not self._caller().covers(place.run):
            words = f"this token may not write run {place.run!r}"
            self._outcomes[name] = Outcome(name, "denied", words)
        else:
            self._open = (name, self._intake.begin(place, size if isinstance(size, int) else -1))

    def finish(self) -> list[Outcome]:
        """Makes what was verified count; → what became of each segment."""
        self._drop_open("the upload ended before the segment did")
        self._caller()
        try:
            self._intake.put(self._verified.values())
        except OSError as error:
            message = f"the service's disk: {error.strerror or error}"
            stored = [Outcome(name, "later", message) for name in self._verified]
        else:
            stored = [Outcome(name, "stored", self._fate(segment.place)) for name, segment in self._verified.items()]
        return [*self._outcomes.values(), *stored]

    def _fate(self, place: SegmentPath) -> str:
        """What its node has to know of a segment that ingest will remove; empty: it stays."""
        with suppress(StoreError):  # ingest asks again
            deleted = self._tombstones.find(place.run)
            if deleted is not None and deleted.covers(place.writer):
                words = f"run {place.run!r} was deleted at {deleted.deleted_at} by {deleted.author}"
                return f"{words}: what arrives of it is removed"
        return ""

    def _drop_open(self, words: str) -> None:
        if self._open is not None and self._open[1] is not None:
            name = self._open[0]
            self._end(name, Outcome(name, "refused", words))

    def _end(self, name: str, outcome: Outcome) -> None:
        if self._open is not None and self._open[1] is not None:
            quietly_closed([self._open[1]])
        self._open = (name, None)
        self._verified.pop(name, None)
        self._outcomes[name] = outcome


def _is_own(run: str, who: Writer) -> bool:
    return len(run.encode()) <= _RUN_BYTES and who.covers(run)


def _report(who: Writer, asked: Mapping[str, Any], queue: Mapping[str, Any], now: float) -> dict[str, object]:
    """What is kept of a node's own account; numbers that are none are unknown."""
    version, problem = asked.get("version"), asked.get("problem")
    return {
        "writer": who.name,
        "seen_at": datetime.fromtimestamp(now, UTC).isoformat(),
        "segments": _number(queue.get("segments"), int),
        "bytes": _number(queue.get("bytes"), int),
        "oldest_seconds": _number(queue.get("oldest_seconds"), float),
        "clock_ahead_seconds": _ahead(asked.get("time"), now),
        "version": None if version is None else str(version)[:40],
        "problem": None if problem is None else str(problem)[:300],
    }


def _number(value: Any, kind: type[int | float]) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18  # noqa: PLR2004
    return kind(value) if usable else None


def _ahead(clock: Any, now: float) -> float | None:
    usable = isinstance(clock, int | float) and not isinstance(clock, bool) and abs(clock) < 1e12  # noqa: PLR2004
    return round(float(clock) - now, 3) if usable else None
