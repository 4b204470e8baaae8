"""What capture makes of the outputs of steps, the rare kinds included; real ones are in tests/e2e."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.vllm import capture as vllm_capture
from logprobe.collectors.vllm.capture import Capture, Sequence

NAN = float("nan")


def request(name: str = "a-00000000", *, logprobs: int | None = 0, **more: Any) -> SimpleNamespace:
    settings = {"prompt_token_ids": [1, 2, 3], "num_prompt_tokens": 3, "resumable": False, **more}
    params = SimpleNamespace(logprobs=logprobs, logprob_token_ids=None)
    return SimpleNamespace(request_id=name, sampling_params=params, **settings)


def rows(tokens: list[int], logprobs: list[float], columns: int = 1) -> SimpleNamespace:
    """The fields of vLLM's `LogprobsLists`: column 0 is the sampled token."""
    ids, values = np.zeros((len(tokens), columns), np.int32), np.full((len(tokens), columns), -9.0, np.float32)
    ids[:, 0], values[:, 0] = tokens, logprobs
    return SimpleNamespace(logprob_token_ids=ids, logprobs=values)


def output(tokens: list[int], logprobs: list[float] | None = None, **more: Any) -> SimpleNamespace:
    found = None if logprobs is None else rows(tokens, logprobs, columns=3)
    fields = {"request_id": "a-00000000", "finish_reason": None, "new_logprobs": found, "prefill_stats": None, **more}
    return SimpleNamespace(new_token_ids=tokens, **fields)


def step(capture: Capture, now: float, *outputs: SimpleNamespace) -> None:
    """One step from schedule to outputs."""
    scheduled = SimpleNamespace()
    capture.scheduled(scheduled, now)
    finish(capture, scheduled, *outputs)


def finish(capture: Capture, scheduled: Any, *outputs: SimpleNamespace) -> None:
    capture.processed(scheduled, {0: SimpleNamespace(outputs=list(outputs))})


def only(capture: Capture) -> Sequence:
    [sequence] = capture.take_finished(10)
    return sequence


def test_tokens_of_all_kinds_of_steps() -> None:
    capture = Capture()
    capture.add(request())
    step(capture, 1.0)  # a chunk of the prefill
    step(capture, 2.0, output([11], [-0.5], prefill_stats=SimpleNamespace(num_cached_tokens=2)))
    step(capture, 3.0, output([], None))  # nothing sampled
    step(capture, 4.0, output([12, 13, 14], [-1.5, -2.5, -3.5]))  # a speculative step
    step(capture, 5.0, output([15], [-4.5], finish_reason="stop"))
    found = only(capture)
    assert found.tokens.tolist() == [11, 12, 13, 14, 15]
    assert found.logprobs.tolist() == [-0.5, -1.5, -2.5, -3.5, -4.5]
    assert found.times.tolist() == [2.0, 4.0, 4.0, 4.0, 5.0]
    assert (found.finish_reason, found.cached, found.missing, found.foreign) == ("stop", 2, 0, False)
    assert not capture.open


def test_steps_that_overlap_keep_their_own_time() -> None:
    """With asynchronous scheduling the next step is scheduled before the outputs of this one come."""
    capture = Capture()
    capture.add(request())
    first, second = SimpleNamespace(), SimpleNamespace()
    capture.scheduled(first, 1.0)
    capture.scheduled(second, 2.0)
    finish(capture, first, output([11], [-0.5]))
    finish(capture, second, output([12], [-0.5], finish_reason="length"))
    assert only(capture).times.tolist() == [1.0, 2.0]


def test_steps_whose_outputs_never_come_are_counted() -> None:
    capture = Capture()
    lost = [SimpleNamespace() for _ in range(65)]
    for number, scheduled in enumerate(lost):
        capture.scheduled(scheduled, float(number))
    assert capture.counts == {"lost_steps": 1}


@pytest.mark.parametrize("found", [None, rows([11], [-0.5]), rows([], [])])
def test_rows_that_are_missing_are_nan_and_counted(found: Any) -> None:
    capture = Capture()
    capture.add(request())
    step(capture, 1.0, output([11, 12], None, new_logprobs=found, finish_reason="length"))
    sequence = only(capture)
    np.testing.assert_array_equal(sequence.logprobs.tolist(), [NAN, NAN])
    assert sequence.missing == 2


def test_values_that_are_no_logprobs_are_kept_as_they_are() -> None:
    capture = Capture()
    capture.add(request())
    step(capture, 1.0, output([11, 12, 13], [NAN, float("-inf"), 0.25], finish_reason="length"))
    sequence = only(capture)
    np.testing.assert_array_equal(sequence.logprobs.tolist(), [NAN, float("-inf"), 0.25])
    assert sequence.missing == 0


def test_another_column_order_is_noticed() -> None:
    capture = Capture()
    capture.add(request())
    step(capture, 1.0, output([11], None, new_logprobs=rows([99], [-0.5]), finish_reason="length"))
    assert only(capture).foreign


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_ends_without_a_token_and_requests_that_are_none_of_ours(reason: str) -> None:
    """The scheduler says so in an output, or ends the request; pooling requests sample nothing."""
    capture = Capture(inject=True)
    capture.add(request())
    capture.add(SimpleNamespace(request_id="p", sampling_params=None))
    step(capture, 1.0, output([11], [-0.5]), output([], None, request_id="p"))
    if reason == "error":
        step(capture, 2.0, output([], None, finish_reason="error"))
    else:
        capture.ended([request(name, get_finished_reason=lambda: "abort") for name in ("a-00000000", "unknown")])
    sequence = only(capture)
    assert (sequence.tokens.tolist(), sequence.finish_reason, capture.open) == ([11], reason, {})


# --- Injection ---


def test_injection_copies_params_and_strips_rows() -> None:
    capture = Capture(inject=True)
    mine = request(logprobs=None)
    shared = mine.sampling_params
    sibling = request("b-00000000", logprobs=2)
    capture.add(mine)
    capture.add(sibling)
    assert (shared.logprobs, mine.sampling_params.logprobs, sibling.sampling_params.logprobs) == (None, 0, 2)
    ours, theirs = output([11], [-0.5]), output([12], [-0.25], request_id="b-00000000")
    step(capture, 1.0, ours, theirs)
    assert ours.new_logprobs is None
    assert theirs.new_logprobs is not None
    last = output([13], [-0.75], finish_reason="length")
    step(capture, 2.0, last)
    assert last.new_logprobs is None
    found = only(capture)
    assert found.logprobs.tolist() == [-0.5, -0.75]
    assert found.params.logprobs is None  # the document says what the caller asked for


def test_token_ids_ask_for_logprobs_too() -> None:
    capture = Capture(inject=True)
    asking = request(logprobs=None)
    asking.sampling_params.logprob_token_ids = [5, 6]
    capture.add(asking)
    assert asking.sampling_params.logprobs is None


def test_rows_are_stripped_even_when_capture_gave_up() -> None:
    capture = Capture(inject=True)
    capture.add(request(logprobs=None))
    capture.give_up()
    late = [output([11], [-0.5]), output([12], [-0.5], finish_reason="length")]
    for number, item in enumerate(late):
        step(capture, float(number), item)
    assert [item.new_logprobs for item in late] == [None, None]
    assert capture.counts == {"given_up": 1}
    assert not capture.finished


def test_a_name_used_again_is_stripped_only_while_it_is_ours() -> None:
    capture = Capture(inject=True)
    capture.add(request(logprobs=None))
    step(capture, 1.0, output([11], [-0.5], finish_reason="length"))
    capture.add(request(logprobs=0))
    item = output([12], [-0.5], finish_reason="length")
    step(capture, 2.0, item)
    assert item.new_logprobs is not None


# --- Streaming sessions: one request that ends several times ---


def test_turns_of_a_session_are_sequences_of_their_own() -> None:
    capture = Capture()
    running = request(resumable=True, is_finished=lambda: False)
    capture.add(running)
    step(capture, 1.0, output([11], [-0.5], finish_reason="length"))
    capture.add(request(resumable=True))  # the next input names the same request
    running.prompt_token_ids, running.num_prompt_tokens = [1, 2, 3, 4, 5], 5
    running.is_finished = lambda: True
    step(capture, 2.0, output([12], [-0.75], finish_reason="stop"))
    first, second = capture.take_finished(10)
    assert (first.turn, first.tokens.tolist(), first.prompt_length) == (0, [11], 3)
    assert (second.turn, second.tokens.tolist(), second.prompt_length) == (1, [12], 5)
    assert not capture.open


def test_waiting_sequences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_capture, "_MOST_FINISHED", 2)
    capture = Capture()
    for number in range(3):
        capture.add(request())
        step(capture, float(number), output([number], [-0.5], finish_reason="length"))
    assert [sequence.tokens.tolist() for sequence in capture.take_finished(10)] == [[1], [2]]
    assert capture.counts == {"overflow": 1}
