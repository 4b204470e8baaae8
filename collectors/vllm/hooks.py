"""Hooks around vLLM's own methods.

Every hook passes arguments, results and errors of the original method through. It does its own work inside a guard,
which counts its errors and never raises them. A scheduler is hooked on the object alone. The engine core's methods are
hooked on its classes, because the object does not yet exist when its scheduler is built. They check whether the
scheduler is watched.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from logprobe.collectors.vllm.emitter import Emitter
from logprobe.collectors.vllm.weights.loads import CHECKSUMS, may_change_weights
from logprobe.collectors.vllm.weights.updates import count_tensors, method_name

Hook = Callable[..., Any]
_ATTRIBUTE: Final = "logprobe"  # of a scheduler that is watched: its `Emitter`


# --- The scheduler: what is sampled ---


def hook_scheduler(scheduler: Any, watch: Emitter) -> None:
    """Collect the samples of this scheduler's engine."""
    for name, make in (
        ("schedule", _schedule),
        ("update_from_output", _update_from_output),
        ("add_request", _add_request),
        ("finish_requests", _finish_requests),
        ("reset_prefix_cache", _reset_prefix_cache),
    ):
        original = getattr(scheduler, name, None)
        if original is not None:
            setattr(scheduler, name, functools.wraps(original)(make(original, scheduler, watch)))
    setattr(scheduler, _ATTRIBUTE, watch)


def _schedule(original: Hook, _scheduler: Any, watch: Emitter) -> Hook:
    guard, capture, updates = watch.guard, watch.observed.capture, watch.observed.updates

    def schedule(*args: Any, **kwargs: Any) -> Any:
        now = time.monotonic()
        step = original(*args, **kwargs)
        with guard("vllm_plugin.schedule"):
            capture.scheduled(step, now)
            step.logprobe_scheduled = now  # for the worker: what it loads in this step, this step computes with
            if step.total_num_scheduled_tokens:
                updates.step(capture.last_scheduled)
        return step

    return schedule


def _update_from_output(original: Hook, _scheduler: Any, watch: Emitter) -> Hook:
    guard, capture = watch.guard, watch.observed.capture

    def update_from_output(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        if capture.routes:
            _take_routes(watch, outputs)
        with guard("vllm_plugin.update_from_output") as capturing:
            capture.processed(args[0] if args else kwargs["scheduler_output"], outputs)
        if capturing.failed:
            with guard("vllm_plugin.recover"):
                capture.give_up()
                capture.strip(outputs)
        return outputs

    return update_from_output


def _take_routes(watch: Emitter, outputs: Any) -> None:
    """Take routes separately, so that an error in them does not affect log-probs."""
    with watch.guard("vllm_plugin.routes") as taking:
        watch.observed.capture.take_routes(outputs)
    if taking.failed:
        with watch.guard("vllm_plugin.recover"):
            watch.observed.capture.give_up_routes()


def _add_request(original: Hook, _scheduler: Any, watch: Emitter) -> Hook:
    guard, capture = watch.guard, watch.observed.capture

    def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
        with guard("vllm_plugin.add_request"):
            capture.add(request)
            if getattr(request, "lora_request", None) is not None:
                watch.observed.adapters.used(request.lora_request, time.monotonic())
        return original(request, *args, **kwargs)

    return add_request


def _finish_requests(original: Hook, scheduler: Any, watch: Emitter) -> Hook:
    guard, capture = watch.guard, watch.observed.capture

    def finish_requests(request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        ending: list[Any] = []
        if request_ids is not None and not isinstance(request_ids, str):
            request_ids = list(request_ids)  # it may be an iterator, which two cannot read
        with guard("vllm_plugin.finish_requests"):
            ending = _requests(scheduler, request_ids)
        result = original(request_ids, *args, **kwargs)
        with guard("vllm_plugin.finish_requests"):
            capture.ended(request for request in ending if request.is_finished())
        return result

    return finish_requests


def _requests(scheduler: Any, request_ids: str | list[str] | None) -> list[Any]:
    names = list(scheduler.requests) if request_ids is None else request_ids
    requests = (scheduler.requests.get(name) for name in ([names] if isinstance(names, str) else names))
    return [request for request in requests if request is not None]


def _reset_prefix_cache(original: Hook, _scheduler: Any, watch: Emitter) -> Hook:
    def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with watch.guard("vllm_plugin.reset_prefix_cache"):
            watch.observed.updates.cache_reset(successful=bool(result))
        return result

    return reset_prefix_cache


# --- The engine core: how weights change ---


def hook_engine_cores() -> list[str]:
    """Wrap the engine core classes of this process. Return the calls that this vLLM lacks."""
    module = sys.modules.get("vllm.v1.engine.core")
    base = getattr(module, "EngineCore", None)
    if base is None:
        return sorted(_ENGINE_HOOKS)
    hooked: set[str] = set()
    for cls in [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]:
        hooked.update(name for name, make in _ENGINE_HOOKS.items() if name in vars(cls) and wrap(cls, name, make))
    return sorted(set(_ENGINE_HOOKS) - hooked)


def _watch(engine: Any) -> Emitter | None:
    return getattr(getattr(engine, "scheduler", None), _ATTRIBUTE, None)


def _hook(name: str, look: Callable[..., object], *, first: bool = False) -> Callable[[Hook], Hook]:
    """Return a wrapper of a method of an engine core that calls `look(watch, result, *arguments)` afterwards.

    With `first`, the call comes before the method, without a result.
    """

    def make(original: Hook) -> Hook:
        def hooked(engine: Any, *args: Any, **kwargs: Any) -> Any:
            watch = _watch(engine)
            if watch is not None and first:
                with watch.guard(f"vllm_plugin.{name}"):
                    look(watch, None, *args, **kwargs)
            result = original(engine, *args, **kwargs)
            if watch is not None and not first:
                with watch.guard(f"vllm_plugin.{name}"):
                    look(watch, result, *args, **kwargs)
            return result

        return hooked

    return make


def _arrives(_: Emitter, result: Any, request: Any, *__: Any, **___: Any) -> None:
    result[0].logprobe_external_id = getattr(request, "external_req_id", None)


def _pauses(watch: Emitter, _: Any, mode: str = "abort", *__: Any, **___: Any) -> None:
    watch.observed.updates.paused(time.monotonic(), str(mode))


def _resumes(watch: Emitter, *_: Any, **__: Any) -> None:
    watch.observed.updates.resumed(time.monotonic())


def _sleeps(watch: Emitter, _: Any, level: int = 1, *__: Any, **___: Any) -> None:
    if level > 1:  # level 1 brings the same weights back
        loaded(watch, "sleep", time.monotonic())


def _ends(watch: Emitter, *_: Any, **__: Any) -> None:
    watch.close()


def _labelled(watch: Emitter, _: Any, weight_version: str, *__: Any, **___: Any) -> None:
    now = time.monotonic()
    # "default" is what vLLM reports when it was not set.
    watch.observed.timeline.set(now, None if weight_version == "default" else str(weight_version))
    watch.observed.updates.labelled(now)


def _collective_rpc(original: Hook) -> Hook:
    def collective_rpc(engine: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _watch(engine)
        passed = kwargs.get("kwargs", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - (timeout, args, kwargs)
        started = time.monotonic()
        if watch is None or not may_change_weights(method, passed):
            result = original(engine, method, *args, **kwargs)
            if watch is not None and method == CHECKSUMS:
                with watch.guard("vllm_plugin.checksums"):
                    watch.observed.checksums.append((started, time.monotonic(), result))
            return result
        try:
            return original(engine, method, *args, **kwargs)
        finally:  # after a failed load the weights are unknown as well
            with watch.guard("vllm_plugin.collective_rpc"):
                loaded(watch, method, started, count_tensors(passed))

    return collective_rpc


def loaded(watch: Emitter, method: Any, started: float, tensors: int | None = None) -> None:
    """Record that `method`, which may have changed the weights, ran from `started` until now.

    Only a label or a mark can identify the new weights.
    """
    now = time.monotonic()
    watch.observed.timeline.set(started, None)
    watch.observed.adapters.weights_changed(started)
    watch.observed.adapters.weights_changed(now)
    # A mark made before the load returned says nothing about what the load left behind.
    watch.observed.timeline.set(now, None)
    watch.observed.updates.loaded(method_name(method), started, now, tensors)


def hook_direct_loads(executor: Any, watch: Emitter) -> None:
    """Detect calls that reach the workers or the model of this engine's process without passing its core.

    A colocated trainer holds the executor, the worker or the model itself. Workers in other processes are reached by
    `collective_rpc` only.
    """
    executor.collective_rpc = _noticed(executor.collective_rpc, watch, "collective_rpc")
    worker = getattr(getattr(executor, "driver_worker", None), "worker", None)
    if worker is not None:
        _notice(worker, ("load_model", "reload_weights", "update_weights", "reset_weights", "apply_model"), watch)
        for model in (worker.get_model(), *_draft_model(worker)):
            _notice(model, ("load_weights", "load_state_dict"), watch)


def _adapter_added(watch: Emitter, args: tuple[Any, ...]) -> None:
    with watch.guard("vllm_plugin.adapters"):
        watch.observed.adapters.added(args[0], time.monotonic())


def _draft_model(worker: Any) -> list[Any]:
    model = getattr(worker, "get_draft_model", lambda: None)()
    return [] if model is None else [model]


def _notice(owner: Any, names: tuple[str, ...], watch: Emitter) -> None:
    for name in names:
        if callable(getattr(owner, name, None)):
            setattr(owner, name, _noticed(getattr(owner, name), watch, name))


def _noticed(original: Hook, watch: Emitter, name: str) -> Hook:
    """Wrap `original`, a bound method. A harmless call costs one look-up, since `collective_rpc` runs at every step."""
    by_name = name == "collective_rpc"

    def noticed(*args: Any, **kwargs: Any) -> Any:
        method = (args[0] if args else kwargs.get("method")) if by_name else name
        if by_name and not may_change_weights(method, kwargs.get("kwargs")):
            if method == "add_lora":
                _adapter_added(watch, kwargs.get("args", ()))
            return original(*args, **kwargs)
        started = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            with watch.guard("vllm_plugin.loads"):
                loaded(watch, method, started)

    return functools.wraps(original)(noticed)


_ENGINE_HOOKS: Final[dict[str, Callable[[Hook], Hook]]] = {
    "preprocess_add_request": _hook("preprocess_add_request", _arrives),
    "pause_scheduler": _hook("pause_scheduler", _pauses, first=True),
    "resume_scheduler": _hook("resume_scheduler", _resumes),
    "collective_rpc": _collective_rpc,
    "sleep": _hook("sleep", _sleeps, first=True),
    "set_weight_version": _hook("set_weight_version", _labelled),
    # First: the front-end may kill this process while it waits for its workers.
    "shutdown": _hook("shutdown", _ends, first=True),
}


def wrap(owner: type, name: str, make: Callable[[Hook], Hook]) -> bool:
    """Replace `owner.name` once. Return True, since it is wrapped now or was before."""
    original = vars(owner)[name]
    if not hasattr(original, "__logprobe__"):
        replacement: Any = functools.wraps(original)(make(original))
        replacement.__logprobe__ = True
        setattr(owner, name, replacement)
    return True
