"""Capture in the engine's own thread, which collects the sampled tokens of every step per request.

The capture reads the outputs that the scheduler hands to the front-end. By then the engine has trimmed stop tokens,
dropped stale and aborted work and resolved speculative rows. A prefill chunk (no token) therefore adds nothing, and a
speculative step adds several tokens. The records match the output to the caller. The exception is a stop string, at
which the front-end ends an answer. The engine treats this as an abort and may sample on before it. The monitor omits
tokens that were not trained on. Each token costs three appends of a machine number. The emitter's thread does all other
work.

The module knows vLLM's objects only by the names of their attributes and never imports vllm.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable
from copy import copy
from typing import Any, Final

from logprobe.collectors.vllm.adapters import Adapters
from logprobe.collectors.vllm.step_routes import routes_of_step

_NAN: Final = float("nan")
_STEPS_IN_FLIGHT: Final = 64  # scheduled and not yet processed; more would mean that the engine lost some
_MOST_ROUTE_BYTES: Final = 256 << 20  # of unfinished sequences; beyond that, routes of further tokens are not kept
_MOST_FINISHED: Final = 65_536  # sequences that wait for the emitter; it never blocks, so this is a bound and no queue


class Sequence:
    """Request from its arrival to its end, with 16 bytes per sampled token, and two per layer with routes."""

    __slots__ = (
        "adapter",
        "cached",
        "external_id",
        "finish_reason",
        "foreign",
        "injected",
        "internal_id",
        "layers",
        "logprobs",
        "missing",
        "params",
        "prompt",
        "prompt_length",
        "routes",
        "session",
        "started",
        "times",
        "tokens",
        "turn",
    )

    def __init__(self, request: Any, *, turn: int = 0) -> None:
        self.internal_id: str = request.request_id
        self.external_id: str | None = getattr(request, "logprobe_external_id", None)
        self.params = request.sampling_params  # as the caller sent them, resolved by the front-end
        self.adapter = getattr(request, "lora_request", None)
        self.prompt: list[int] | None = request.prompt_token_ids
        self.prompt_length: int = request.num_prompt_tokens
        self.session = request if getattr(request, "resumable", False) else None  # a streaming session ends many times
        self.turn = turn
        self.injected = False
        self.started = False  # its first token has come
        self.foreign = False  # column 0 was not the sampled token
        self.cached: int | None = None
        self.finish_reason: str | None = None
        self.missing = 0  # tokens without a log-prob
        self.tokens = array("i")
        self.logprobs = array("f")
        self.times = array("d")  # when the step that sampled the token was scheduled, on the monotonic clock
        self.routes = bytearray()  # fingerprints (uint16) of the newest tokens, `layers` each
        self.layers = 0

    def add(self, now: float, tokens: list[int], rows: Any) -> None:
        """Append `tokens` with their rows of log-probs. Column 0 belongs to the sampled token."""
        count = len(tokens)
        self.tokens.extend(tokens)
        self.times.extend([now] * count)
        if rows is None or len(rows.logprobs) != count:
            self.logprobs.extend([_NAN] * count)
            self.missing += count
        else:
            self.logprobs.extend(rows.logprobs[:, 0].tolist())

    def goes_on(self) -> bool:
        """Return whether this was one turn of a streaming session that waits for its next input."""
        return self.session is not None and not self.session.is_finished()


def asks_for_logprobs(params: Any) -> bool:
    """Return whether vLLM returns sampled-token log-probs to the caller of a request with these `SamplingParams`."""
    return params.logprobs is not None or bool(getattr(params, "logprob_token_ids", None))


class Capture:
    """State of one engine. Only the engine's thread calls its methods, except `take_finished`."""

    def __init__(self, *, inject: bool = False, routes: bool = False) -> None:
        self.inject = inject
        self.adapters = Adapters()
        self.routes = routes  # the engine returns routed experts
        self._route_bytes = 0
        self.open: dict[str, Sequence] = {}
        self.finished: deque[Sequence] = deque()
        self.counts: Counter[str] = Counter()  # sequences (of routes_given_up: engines) affected, by problem
        self.last_scheduled = 0.0
        self._injected: set[str] = set()  # outlives `open` when capture fails: stripping must not
        self._scheduled_at: dict[int, float] = {}

    def add(self, request: Any) -> None:
        """Add a request that arrives at the scheduler. With `inject`, turn on its log-probs."""
        if request.sampling_params is None:  # pooling
            return
        if request.request_id not in self.open:  # else the next input of a streaming session
            self.open[request.request_id] = Sequence(request)
        if self.inject and not asks_for_logprobs(request.sampling_params):
            self._turn_on(request)

    def _turn_on(self, request: Any) -> None:
        # Siblings of n > 1 share one params object, and the caller may hold it: never change it.
        params = copy(request.sampling_params)
        params.logprobs = 0
        self._injected.add(request.request_id)
        self.open[request.request_id].injected = True
        request.sampling_params = params

    def scheduled(self, step: Any, now: float) -> None:
        """Record that a step begins at `now`. The present weights will sample its tokens."""
        self.last_scheduled = now
        if len(self._scheduled_at) >= _STEPS_IN_FLIGHT:
            self._scheduled_at.clear()
            self.counts["lost_steps"] += 1
        self._scheduled_at[id(step)] = now

    def processed(self, step: Any, outputs_by_client: dict[int, Any]) -> None:
        """Take a step's outputs before they leave the engine, and strip values that were not requested."""
        now = self._scheduled_at.pop(id(step), self.last_scheduled)
        sequences = self.open
        for outputs in outputs_by_client.values():
            for output in outputs.outputs:
                sequence = sequences.get(output.request_id)
                if sequence is None:
                    continue
                tokens, rows = output.new_token_ids, output.new_logprobs
                # Nearly every output is one more token of a running request; that case costs no further call.
                if len(tokens) == 1 and rows is not None and sequence.started and output.finish_reason is None:
                    sequence.tokens.append(tokens[0])
                    sequence.logprobs.append(rows.logprobs.item(0))
                    sequence.times.append(now)
                else:
                    self._take(sequence, output, now)
        self.strip(outputs_by_client)

    def strip(self, outputs_by_client: dict[int, Any]) -> None:
        """Remove the rows of requests that did not ask for log-probs. Their front-end must never receive them."""
        if not self._injected:
            return
        for outputs in outputs_by_client.values():
            for output in outputs.outputs:
                if output.request_id in self._injected:
                    output.new_logprobs = None
                    if output.finish_reason is not None and output.request_id not in self.open:
                        self._injected.discard(output.request_id)

    def take_routes(self, outputs_by_client: dict[int, Any]) -> None:
        """Take the routes in a step's outputs. Call this before `processed`, which ends sequences.

        Each sequence keeps the contiguous routes of its newest tokens. A missing route discards those before it.
        """
        for name, tokens, marks in routes_of_step(outputs_by_client):
            sequence = self.open.get(name)
            if sequence is None:
                continue
            full = self._route_bytes + marks.nbytes > _MOST_ROUTE_BYTES
            if full or len(marks) < tokens:
                self.counts["routes_full"] += full and bool(sequence.routes)
                self._forget_routes(sequence)
            if not full:
                sequence.layers = marks.shape[1]
                sequence.routes += marks.tobytes()
                self._route_bytes += marks.nbytes

    def give_up_routes(self) -> None:
        """Discard all routes.

        After an error it is unknown which routes are missing, so later ones could be assigned to wrong tokens.
        """
        self.routes = False
        self.counts["routes_given_up"] += 1
        for sequence in self.open.values():
            self._forget_routes(sequence)

    def _forget_routes(self, sequence: Sequence) -> None:
        self._route_bytes -= len(sequence.routes)
        sequence.routes.clear()

    def _take(self, sequence: Sequence, output: Any, now: float) -> None:
        tokens = output.new_token_ids
        if tokens:
            if not sequence.started:
                _start(sequence, output)
            sequence.add(now, tokens, output.new_logprobs)
        if output.finish_reason is not None:
            self._finish(sequence, str(output.finish_reason))

    def ended(self, requests: Iterable[Any]) -> None:
        """Finish requests that ended without a last output, because the caller aborted them or they failed."""
        for request in requests:
            self._injected.discard(request.request_id)
            sequence = self.open.get(request.request_id)
            if sequence is not None:
                reason = request.get_finished_reason()
                self._finish(sequence, "abort" if reason is None else str(reason))

    def _finish(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        if sequence.adapter is not None:
            self.adapters.ended(sequence.adapter, self.last_scheduled)
        self._route_bytes -= len(sequence.routes)
        if sequence.session is not None and sequence.prompt is not None:
            sequence.prompt = sequence.prompt[: sequence.prompt_length]  # the next turn grows this very list
        if sequence.goes_on():
            following = Sequence(sequence.session, turn=sequence.turn + 1)
            following.external_id, following.injected = sequence.external_id, sequence.injected
            self.open[sequence.internal_id] = following
        else:
            del self.open[sequence.internal_id]
        if len(self.finished) >= _MOST_FINISHED:
            self.finished.popleft()
            self.counts["overflow"] += 1
        self.finished.append(sequence)

    def give_up(self) -> None:
        """Drop the open sequences and continue with new ones.

        After an error, some sequences may lack tokens, and it is unknown which.
        """
        self.counts["given_up"] += len(self.open)
        self.open.clear()
        self._route_bytes = 0

    def take_finished(self, most: int) -> list[Sequence]:
        """Remove and return up to `most` finished sequences, in order. The emitter's thread calls this."""
        taken: list[Sequence] = []
        while self.finished and len(taken) < most:
            taken.append(self.finished.popleft())
        return taken


def _start(sequence: Sequence, output: Any) -> None:
    sequence.started = True
    prefill = getattr(output, "prefill_stats", None)
    cached = getattr(output if prefill is None else prefill, "num_cached_tokens", None)
    sequence.cached = cached if cached is not None and cached >= 0 else None
    rows = output.new_logprobs
    if rows is not None:
        sequence.foreign = rows.logprob_token_ids[:, 0].tolist() != list(output.new_token_ids)
    if sequence.turn and sequence.session is not None:
        sequence.prompt = sequence.session.prompt_token_ids
        sequence.prompt_length = sequence.session.num_prompt_tokens
