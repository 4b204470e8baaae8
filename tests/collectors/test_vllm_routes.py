"""Routes in the outputs of an engine's steps: which belong to which token, and what becomes of those that are missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.health import Guard, Health
from logprobe.collectors.routes import NO_ROUTE, fingerprints
from logprobe.collectors.vllm import capture as vllm_capture
from logprobe.collectors.vllm.capture import Capture
from logprobe.collectors.vllm.emitter import _routes
from logprobe.collectors.vllm.hooks import hook_scheduler
from logprobe.collectors.vllm.step_routes import returns_routes

EXPERTS = np.argsort(np.random.default_rng(0).random((20, 3, 8)), axis=2)[:, :, :2].astype(np.uint8)
MARKS = fingerprints(EXPERTS)


def request(name: str = "a") -> SimpleNamespace:
    params = SimpleNamespace(logprobs=0, logprob_token_ids=None)
    return SimpleNamespace(request_id=name, sampling_params=params, prompt_token_ids=[1], num_prompt_tokens=1)


def output(rows: np.ndarray | None, tokens: int = 1, name: str = "a", reason: str | None = None) -> SimpleNamespace:
    fields = {"request_id": name, "finish_reason": reason, "new_logprobs": None, "routed_experts": rows}
    return SimpleNamespace(new_token_ids=[7] * tokens, **fields)


def take(capture: Capture, *outputs: SimpleNamespace) -> None:
    of_step = {0: SimpleNamespace(outputs=list(outputs))}
    capture.take_routes(of_step)
    capture.processed(SimpleNamespace(), of_step)


def watched(*names: str) -> Capture:
    capture = Capture(routes=True)
    for name in names:
        capture.add(request(name))
    return capture


def recorded(capture: Capture) -> dict[str, list[list[int]] | None]:
    found = {sequence.internal_id: _routes(sequence) for sequence in capture.take_finished(10)}
    return {name: None if marks is None else marks.tolist() for name, marks in found.items()}


def test_the_last_rows_are_those_of_the_new_tokens() -> None:
    """The prompt's rows come with the first token; a speculative step brings several; requests share a step."""
    capture = watched("a", "b")
    take(capture, output(EXPERTS[:5]), output(None, tokens=0, name="b"))
    take(capture, output(EXPERTS[5:8], tokens=3), output(EXPERTS[10:14], name="b"))
    take(capture, output(EXPERTS[8:9], reason="length"), output(EXPERTS[14:15], name="b", reason="stop"))
    assert recorded(capture) == {"a": MARKS[4:9].tolist(), "b": MARKS[13:15].tolist()}


def test_the_first_token_may_come_without() -> None:
    capture = watched("a")
    take(capture, output(EXPERTS[:0]))
    take(capture, output(EXPERTS[:2], tokens=2, reason="length"))
    assert recorded(capture) == {"a": [[NO_ROUTE] * 3, *MARKS[:2].tolist()]}


def test_a_gap_costs_what_was_before_it() -> None:
    """Never the place: a route is that of its own token, or it is unknown."""
    capture = watched("a", "b")
    take(capture, output(EXPERTS[:2]), output(EXPERTS[:2], name="b"))
    take(capture, output(None), output(EXPERTS[2:3], name="b"))
    take(capture, output(EXPERTS[3:4], reason="length"), output(None, name="b", reason="length"))
    assert recorded(capture) == {"a": [[NO_ROUTE] * 3] * 2 + MARKS[3:4].tolist(), "b": None}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_capture, "_MOST_ROUTE_BYTES", 2 * MARKS[0].nbytes)
    capture = watched("a", "b")
    take(capture, output(EXPERTS[:1]), output(EXPERTS[1:2], name="b"))
    take(capture, output(EXPERTS[2:3]), output(EXPERTS[3:4], name="b", reason="length"))
    take(capture, output(EXPERTS[4:5], reason="length"))
    assert recorded(capture) == {
        "a": [[NO_ROUTE] * 3] * 2 + MARKS[4:5].tolist(),
        "b": [MARKS[1].tolist(), MARKS[3].tolist()],
    }
    assert capture.counts == {"routes_full": 1}
    assert capture._route_bytes == 0


class Watched:
    """A watched engine, without the engine."""

    def __init__(self) -> None:
        self.health = Health()
        self.observed: Any = SimpleNamespace(capture=watched("a"), updates=None)

    def guard(self, where: str) -> Guard:
        return Guard(self.health, where)

    def close(self) -> None:
        """Nothing is written."""


def test_routes_that_are_not_understood_cost_no_log_probs() -> None:
    watch, capture = Watched(), None
    answers = iter([output(EXPERTS[:2]), output(EXPERTS.astype(float)), output(EXPERTS[2:3], reason="length")])
    scheduler = SimpleNamespace(
        update_from_output=lambda *_: {0: SimpleNamespace(outputs=[next(answers)])}, requests={}
    )
    hook_scheduler(scheduler, watch)
    capture = watch.observed.capture
    for _ in range(3):
        scheduler.update_from_output(SimpleNamespace(), None)
    assert not capture.routes
    assert capture.counts == {"routes_given_up": 1}
    (sequence,) = capture.take_finished(1)
    assert (len(sequence.tokens), _routes(sequence)) == (3, None)
    assert any("routes" in problem.message for problem in watch.health.due(everything=True))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SimpleNamespace(), False),
        (SimpleNamespace(aux_output_config=SimpleNamespace()), False),
        (SimpleNamespace(aux_output_config=SimpleNamespace(enable_return_routed_experts=False)), False),
        (SimpleNamespace(aux_output_config=SimpleNamespace(enable_return_routed_experts=True)), True),
    ],
)
def test_what_an_engine_says_of_itself(config: SimpleNamespace, expected: bool) -> None:
    assert returns_routes(config) is expected
