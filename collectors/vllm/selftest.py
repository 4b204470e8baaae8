"""Self-test of this vLLM's classes against the plugin's expectations. It runs once per engine, before any hook."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from logprobe.collectors.routes import fingerprints
from logprobe.collectors.vllm.capture import Capture
from logprobe.collectors.vllm.step_routes import returns_routes

_SCHEDULER: Final = {
    "schedule": 0,
    "update_from_output": 2,
    "add_request": 1,
    "finish_requests": 2,
}
_LOGPROBS: Final = np.array([[-0.5, -0.25], [-1.5, -0.75], [-2.5, -1.25]], dtype=np.float32)
_EXPERTS: Final = np.array([[[0, 0], [1, 2]], [[0, 0], [3, 1]], [[0, 0], [2, 3]], [[0, 0], [1, 3]]], dtype=np.uint8)
_TOKENS: Final = np.array([[11, 7], [12, 8], [13, 9]], dtype=np.int32)


def self_test(scheduler: Any) -> list[str]:
    """Return the differences from the expected classes, or none if capture will work.

    Args:
        scheduler: scheduler of the engine, which is only read.
    """
    problems = _unknown_methods(scheduler)
    if problems:
        return problems
    differences = [problem for inject in (False, True) for problem in _extraction(scheduler.vllm_config, inject=inject)]
    return list(dict.fromkeys(differences))


def _unknown_methods(scheduler: Any) -> list[str]:
    problems = []
    for name, arguments in _SCHEDULER.items():
        method = getattr(scheduler, name, None)
        if not callable(method):
            problems.append(f"{type(scheduler).__name__} has no {name}")
        elif not _takes(method, arguments):
            problems.append(f"{type(scheduler).__name__}.{name}{inspect.signature(method)} has a different signature")
    if not isinstance(getattr(scheduler, "requests", None), dict):
        problems.append(f"{type(scheduler).__name__}.requests is not a dict of requests")
    return problems


def _takes(method: Any, arguments: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _extraction(vllm_config: Any, *, inject: bool) -> list[str]:
    """Run made-up outputs, built from vLLM's own classes, through `Capture`."""
    from vllm.sampling_params import SamplingParams  # noqa: PLC0415 - only called inside vLLM
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason  # noqa: PLC0415
    from vllm.v1.outputs import LogprobsLists  # noqa: PLC0415

    params = SamplingParams(max_tokens=3, logprobs=None if inject else 0)
    request = _request(params)
    capture = Capture(inject=inject, routes=returns_routes(vllm_config))
    capture.add(request)
    rows = LogprobsLists(_TOKENS, _LOGPROBS, np.ones(3, dtype=np.int32))
    steps = [
        EngineCoreOutput(request_id="0_a-00000000", new_token_ids=[11], new_logprobs=_slice(rows, 0, 1)),
        EngineCoreOutput(request_id="0_a-00000000", new_token_ids=[12, 13], new_logprobs=_slice(rows, 1, 2)),
    ]
    steps[-1].finish_reason = FinishReason.LENGTH
    if capture.routes:
        for step, rows_of_step in zip(steps, (_EXPERTS[:2], _EXPERTS[2:]), strict=True):
            step.routed_experts = rows_of_step
    for number, output in enumerate(steps):
        step = SimpleNamespace()
        outputs = {0: EngineCoreOutputs(outputs=[output])}
        capture.scheduled(step, float(number))
        if capture.routes:
            capture.take_routes(outputs)
        capture.processed(step, outputs)
    return _differences(capture, request, params, steps, inject=inject)


def _differences(capture: Capture, request: Any, params: Any, steps: list[Any], *, inject: bool) -> list[str]:
    finished = capture.take_finished(2)
    if len(finished) != 1:
        return ["a finished request is not recognised"]
    sequence = finished[0]
    checks = {
        "token ids": sequence.tokens.tolist() == [11, 12, 13],
        "log-probs": sequence.logprobs.tolist() == [-0.5, -1.5, -2.5],
        "finish reason": sequence.finish_reason == "length",
        "prompt length": sequence.prompt_length == 2,  # noqa: PLR2004
        "the caller's params": params.logprobs == (None if inject else 0),
    }
    if capture.routes:  # of four positions the first is the prompt's own
        checks["routed experts"] = sequence.routes == fingerprints(_EXPERTS[1:]).tobytes()
    if inject:
        checks["injection of logprobs=0"] = request.sampling_params.logprobs == 0
        checks["stripping of injected rows"] = all(step.new_logprobs is None for step in steps)
    else:
        checks["rows that were asked for"] = all(step.new_logprobs is not None for step in steps)
    return [f"{name}: not as expected" for name, is_right in checks.items() if not is_right]


def _slice(rows: Any, start: int, count: int) -> Any:
    return rows.slice_request(start, count)


def _request(params: Any) -> Any:
    from vllm.v1.request import Request  # noqa: PLC0415

    arguments = {"request_id": "0_a-00000000", "prompt_token_ids": [1, 2], "sampling_params": params}
    wanted = inspect.signature(Request).parameters.values()
    for parameter in wanted:  # earlier versions require more; None is a valid value of each
        if parameter.default is inspect.Parameter.empty:
            arguments.setdefault(parameter.name, None)
    return Request(**arguments)
