"""Facts that only the front-end has: whether a stop string ended a request, and after how many tokens.

The engine core learns of a stop string as an abort, and has sampled on meanwhile; it may even have ended the request
itself. The front-end's process loads the plugin too: there the names of requests to abort get company, names of ours
that say of each ended request with stop strings how many tokens its caller got. The engine's side takes these names out
again (`split_words`); vLLM itself passes over names of requests that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from logprobe.collectors.health import Guard, Health

Hook = Callable[..., Any]
_STOPPED: Final = "logprobe-stopped:"
_WHOLE: Final = "logprobe-whole:"
_HEALTH: Final = Health()


def install(wrap: Callable[[type, str, Callable[[Hook], Hook]], bool]) -> None:
    """Hooks the front-end's classes in this process. Raises what is raised where this vLLM has other ones."""
    from vllm.v1.engine import EngineCoreRequestType, core_client, output_processor  # noqa: PLC0415

    processor = output_processor.OutputProcessor
    if all(name in vars(processor) for name in ("process_outputs", "_finish_request")):
        wrap(processor, "_finish_request", _finish_request)
        wrap(processor, "process_outputs", _process_outputs)
        wrap(core_client.DPLBAsyncMPClient, "abort_requests_async", _to_every_engine(EngineCoreRequestType.ABORT))


def split_words(names: Iterable[str]) -> tuple[list[str], dict[str, int | None]]:
    """Names of an abort without ours, and what ours say: request id → tokens that its caller got; None: all.

    >>> split_words(["a-1", "logprobe-stopped:7:a-1", "logprobe-whole:b"])
    (['a-1'], {'a-1': 7, 'b': None})
    """
    plain: list[str] = []
    told: dict[str, int | None] = {}
    for name in names:
        if name.startswith(_STOPPED):
            count, _, request_id = name.removeprefix(_STOPPED).partition(":")
            told[request_id] = int(count)
        elif name.startswith(_WHOLE):
            told[name.removeprefix(_WHOLE)] = None
        else:
            plain.append(name)
    return plain, told


def _finish_request(original: Hook) -> Hook:
    def finish_request(processor: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        with Guard(_HEALTH, "vllm_plugin.finish_request", cost=False):
            if getattr(state.detokenizer, "stop", None):
                ended = processor.__dict__.setdefault("logprobe_ended", {})
                ended[state.request_id] = state.detokenizer.num_output_tokens()
        return original(processor, state, *args, **kwargs)

    return finish_request


def _process_outputs(original: Hook) -> Hook:
    def process_outputs(processor: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(processor, *args, **kwargs)
        ended = processor.__dict__.get("logprobe_ended")
        if ended:
            with Guard(_HEALTH, "vllm_plugin.process_outputs", cost=False):
                stopped = set(outputs.reqs_to_abort)
                words = [
                    f"{_STOPPED}{count}:{name}" if name in stopped else f"{_WHOLE}{name}"
                    for name, count in ended.items()
                ]
                outputs.reqs_to_abort += words
            ended.clear()
        return outputs

    return process_outputs


def _to_every_engine(abort: Any) -> Callable[[Hook], Hook]:
    """Send our names to every engine: vLLM has forgotten which one had a request that has ended."""

    def make(original: Hook) -> Hook:
        async def abort_requests_async(client: Any, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
            names, words = list(request_ids), []
            with Guard(_HEALTH, "vllm_plugin.abort_requests", cost=False):
                words = [name for name in names if name.startswith((_STOPPED, _WHOLE))]
                names = [name for name in names if name not in words]
            result = await original(client, names, *args, **kwargs)
            with Guard(_HEALTH, "vllm_plugin.abort_requests", cost=False):
                for engine in client.core_engines if words and not client.resources.engine_dead else ():
                    await client._send_input(abort, words, engine)  # noqa: SLF001 - the way of its own aborts
            return result

        return abort_requests_async

    return make
