"""What only the front-end knows: that a stop string ended a request, and after how many tokens.

The engine core learns of a stop string as an abort, and has sampled on meanwhile. The front-end's process loads the
plugin too: there the abort gets company, a name of ours that says which request was stopped and how many tokens its
caller got. The engine's side takes these names out again (`split_words`); vLLM itself passes over names of requests
that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from logprobe.collectors.health import Guard, Health

Hook = Callable[..., Any]
_WORD: Final = "logprobe-stopped:"
_MOST_WORDS: Final = 4096  # stops on their way to an engine
_STOPPED: Final[dict[str, int]] = {}  # request id → tokens that its caller got
_HEALTH: Final = Health()


def install(wrap: Callable[[type, str, Callable[[Hook], Hook]], bool]) -> None:
    """Hooks the front-end's classes in this process. Raises what is raised where this vLLM has other ones."""
    from vllm.v1.engine import EngineCoreRequestType, core_client, output_processor  # noqa: PLC0415

    processor = output_processor.OutputProcessor
    if all(name in vars(processor) for name in ("process_outputs", "_finish_request")):
        wrap(processor, "_finish_request", _finish_request)
        wrap(processor, "process_outputs", _process_outputs)
        for client in (core_client.SyncMPClient, core_client.AsyncMPClient):
            wrap(client, "_send_input", _sending(EngineCoreRequestType.ABORT))
        wrap(core_client.InprocClient, "abort_requests", _abort_requests)


def split_words(names: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Names of an abort without ours, and what ours say: request id → tokens that its caller got.

    >>> split_words(["a-1", "logprobe-stopped:7:a-1"])
    (['a-1'], {'a-1': 7})
    """
    plain, told = [], {}
    for name in names:
        if name.startswith(_WORD):
            count, _, request_id = name.removeprefix(_WORD).partition(":")
            told[request_id] = int(count)
        else:
            plain.append(name)
    return plain, told


def with_words(names: list[str]) -> list[str]:
    """Names of an abort and, behind them, what is known of those that a stop string ended."""
    words = [f"{_WORD}{count}:{name}" for name in names if (count := _STOPPED.pop(name, None)) is not None]
    return [*names, *words] if words else names


def _finish_request(original: Hook) -> Hook:
    def finish_request(processor: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        with Guard(_HEALTH, "vllm_plugin.finish_request", cost=False):
            ended = processor.__dict__.setdefault("logprobe_ended", {})
            ended[state.request_id] = state.detokenizer.num_output_tokens() if state.detokenizer is not None else None
        return original(processor, state, *args, **kwargs)

    return finish_request


def _process_outputs(original: Hook) -> Hook:
    def process_outputs(processor: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(processor, *args, **kwargs)
        ended = processor.__dict__.get("logprobe_ended")
        if ended:
            with Guard(_HEALTH, "vllm_plugin.process_outputs", cost=False):
                _remember({name: ended[name] for name in outputs.reqs_to_abort if ended.get(name) is not None})
            ended.clear()
        return outputs

    return process_outputs


def _remember(stopped: dict[str, int]) -> None:
    _STOPPED.update(stopped)
    while len(_STOPPED) > _MOST_WORDS:
        del _STOPPED[next(iter(_STOPPED))]


def _sending(abort: Any) -> Callable[[Hook], Hook]:
    def make(original: Hook) -> Hook:
        def send_input(client: Any, request_type: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if request_type is abort and _STOPPED:
                with Guard(_HEALTH, "vllm_plugin.send_input", cost=False):
                    request = with_words(list(request))
            return original(client, request_type, request, *args, **kwargs)

        return send_input

    return make


def _abort_requests(original: Hook) -> Hook:
    def abort_requests(client: Any, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if _STOPPED:
            with Guard(_HEALTH, "vllm_plugin.abort_requests", cost=False):
                request_ids = with_words(list(request_ids))
        return original(client, request_ids, *args, **kwargs)

    return abort_requests
