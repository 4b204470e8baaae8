"""How the plugin gets into an engine: where it hooks, and that it never harms.

`install` wraps the constructor of vLLM's `Scheduler`; the only place that exists in every engine core, whatever the front-end.
When one is built, and the self-test finds everything as expected, its methods are wrapped on that object alone, and the
calls through which weights change are observed on the classes of the engine core. Every hook calls the original with the
arguments it got, returns what it returned, lets its errors through, and does its own work inside a guard.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from logprobe.collectors import vllm_config, vllm_updates
from logprobe.collectors.health import LOGGER, Guard, Health
from logprobe.collectors.recorder import Recorder
from logprobe.collectors.versions import MarkFile, home_and_run
from logprobe.collectors.vllm_capture import Capture
from logprobe.collectors.vllm_emitter import Emitter, Observed
from logprobe.collectors.vllm_ids import sample_prefix
from logprobe.collectors.vllm_selftest import self_test

ATTRIBUTE: Final = "logprobe"  # of a scheduler: its `Attachment`
_CLOSE_SECONDS: Final = 3.0
Hook = Callable[..., Any]
_LIVE: Final[weakref.WeakSet[Attachment]] = weakref.WeakSet()


class Attachment:
    """One watched engine: what is collected and what writes it."""

    def __init__(self, recorder: Recorder, observed: Observed, marks: MarkFile) -> None:
        self.recorder = recorder
        self.observed = observed
        self.health = Health()
        self.emitter = Emitter(observed, recorder, marks, self.health)

    def guard(self, where: str) -> Guard:
        """Context of our own work inside a call of vLLM: its errors are counted, never raised."""
        return Guard(self.health, where)

    def close(self) -> None:
        """Write what is left; bounded in time. Later calls do nothing."""
        self.emitter.close()
        self.recorder.close(_CLOSE_SECONDS)


def install() -> None:
    """Watch every engine that is built in this process from now on. Never raises; may be called again."""
    health = Health()
    with Guard(health, "vllm_plugin.register"):
        from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

        _wrap(Scheduler, "__init__", _attaching)
    _log(health)


def flush(timeout: float) -> bool:
    """Write what finished in all engines of this process; whether all of it is durable."""
    done = True
    for attachment in list(_LIVE):
        attachment.emitter.drain()
        done = attachment.recorder.flush(timeout) and done
    return done


def _attaching(original: Hook) -> Hook:
    def construct(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        health = Health()
        with Guard(health, "vllm_plugin.attach"):
            _attach(scheduler)
        _log(health)

    return construct


def _attach(scheduler: Any) -> None:
    """Raises `ConfigurationError` when the environment does not say where and what to record."""
    replica = _replica(scheduler.vllm_config.parallel_config)
    home, run = home_and_run()
    recorder = Recorder(home, run, component="vllm_plugin", replica=replica)
    problems = self_test(scheduler)
    if problems:
        _report_unknown(recorder, problems)
        return
    marks = MarkFile(home, run)
    attachment = Attachment(recorder, _observe(scheduler, recorder, replica), marks)
    _hook_scheduler(scheduler, attachment)
    missing = _hook_engine_cores()
    setattr(scheduler, ATTRIBUTE, attachment)
    _report_attached(attachment, missing)
    _keep(attachment)


def _keep(attachment: Attachment) -> None:
    attachment.emitter.start()
    _LIVE.add(attachment)
    atexit.register(_close_if_alive, weakref.ref(attachment))  # after the recorder's own, so it runs before that


def _close_if_alive(reference: weakref.ref[Attachment]) -> None:
    attachment = reference()
    if attachment is not None:
        attachment.close()


def _observe(scheduler: Any, recorder: Recorder, replica: str | None) -> Observed:
    inject = os.environ.get("LOGPROBE_VLLM_INJECT", "") in {"1", "true", "yes"}
    document = vllm_config.engine_document(scheduler.vllm_config, injected=inject)
    return Observed(
        capture=Capture(inject=inject),
        replica=replica,
        prefix=sample_prefix(),
        engine_config_id=recorder.config(document, kind="engine_config"),
        caches_prefixes=document["summary"]["enable_prefix_caching"],
    )


def _replica(parallel_config: Any) -> str | None:
    """`LOGPROBE_REPLICA`, with the data-parallel rank where there are several."""
    name = os.environ.get("LOGPROBE_REPLICA") or None
    if getattr(parallel_config, "data_parallel_size", 1) > 1:
        rank = f"dp{parallel_config.data_parallel_rank}"
        return rank if name is None else f"{name}-{rank}"
    return name


def _report_unknown(recorder: Recorder, problems: list[str]) -> None:
    recorder.report(
        "self_test",
        "this vLLM is not as the plugin knows it, so the engine runs unwatched: " + "; ".join(problems),
        severity="error",
        details={"ok": False, "problems": problems},
    )
    recorder.close(_CLOSE_SECONDS)


def _report_attached(attachment: Attachment, missing: list[str]) -> None:
    attachment.recorder.report(
        "self_test",
        "watching this engine" + (f"; not observable in this vLLM: {', '.join(missing)}" if missing else ""),
        details={"ok": True, "not_observable": missing, "inject": attachment.observed.capture.inject},
    )


# --- The scheduler: what is sampled ---


def _hook_scheduler(scheduler: Any, attachment: Attachment) -> None:
    for name, make in (
        ("schedule", _schedule),
        ("update_from_output", _update_from_output),
        ("add_request", _add_request),
        ("finish_requests", _finish_requests),
        ("reset_prefix_cache", _reset_prefix_cache),
    ):
        original = getattr(scheduler, name, None)
        if original is not None:
            setattr(scheduler, name, functools.wraps(original)(make(original, scheduler, attachment)))


def _schedule(original: Hook, _scheduler: Any, attachment: Attachment) -> Hook:
    guard, capture, updates = attachment.guard, attachment.observed.capture, attachment.observed.updates

    def schedule(*args: Any, **kwargs: Any) -> Any:
        now = time.time()
        step = original(*args, **kwargs)
        with guard("vllm_plugin.schedule"):
            capture.scheduled(step, now)
            if step.total_num_scheduled_tokens:
                updates.step(capture.last_scheduled)
        return step

    return schedule


def _update_from_output(original: Hook, _scheduler: Any, attachment: Attachment) -> Hook:
    guard, capture = attachment.guard, attachment.observed.capture

    def update_from_output(*args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        complete = False
        with guard("vllm_plugin.update_from_output"):
            capture.processed(args[0] if args else kwargs["scheduler_output"], outputs)
            complete = True
        with guard("vllm_plugin.strip"):
            if not complete:
                capture.give_up()
            capture.strip(outputs)
        return outputs

    return update_from_output


def _add_request(original: Hook, _scheduler: Any, attachment: Attachment) -> Hook:
    guard, capture = attachment.guard, attachment.observed.capture

    def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
        with guard("vllm_plugin.add_request"):
            capture.add(request)
        return original(request, *args, **kwargs)

    return add_request


def _finish_requests(original: Hook, scheduler: Any, attachment: Attachment) -> Hook:
    guard, capture = attachment.guard, attachment.observed.capture

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
    known = (scheduler.requests.get(name) for name in ([names] if isinstance(names, str) else names))
    return [request for request in known if request is not None]


def _reset_prefix_cache(original: Hook, _scheduler: Any, attachment: Attachment) -> Hook:
    def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with attachment.guard("vllm_plugin.reset_prefix_cache"):
            attachment.observed.updates.cache_reset(successful=bool(result))
        return result

    return reset_prefix_cache


# --- The engine core: how weights change ---


def _hook_engine_cores() -> list[str]:
    """Wrap the engine core classes of this process; returns the calls that this vLLM does not have."""
    module = sys.modules.get("vllm.v1.engine.core")
    base = getattr(module, "EngineCore", None)
    if base is None:
        return sorted(_ENGINE_HOOKS)
    found = set()
    for cls in [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]:
        found.update(name for name, make in _ENGINE_HOOKS.items() if name in vars(cls) and _wrap(cls, name, make))
    return sorted(set(_ENGINE_HOOKS) - found)


def _attachment(engine: Any) -> Attachment | None:
    return getattr(getattr(engine, "scheduler", None), ATTRIBUTE, None)


def _preprocess_add_request(original: Hook) -> Hook:
    def preprocess_add_request(engine: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(engine, request, *args, **kwargs)
        attachment = _attachment(engine)
        if attachment is not None:
            with attachment.guard("vllm_plugin.preprocess_add_request"):
                result[0].logprobe_external_id = getattr(request, "external_req_id", None)
        return result

    return preprocess_add_request


def _pause_scheduler(original: Hook) -> Hook:
    def pause_scheduler(engine: Any, mode: str = "abort", *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment(engine)
        if attachment is not None:
            with attachment.guard("vllm_plugin.pause_scheduler"):
                attachment.observed.updates.paused(time.time(), str(mode))
        return original(engine, mode, *args, **kwargs)

    return pause_scheduler


def _resume_scheduler(original: Hook) -> Hook:
    def resume_scheduler(engine: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(engine, *args, **kwargs)
        attachment = _attachment(engine)
        if attachment is not None:
            with attachment.guard("vllm_plugin.resume_scheduler"):
                attachment.observed.updates.resumed(time.time())
        return result

    return resume_scheduler


def _collective_rpc(original: Hook) -> Hook:
    def collective_rpc(engine: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment(engine)
        if attachment is None or not vllm_updates.loads_weights(method):
            return original(engine, method, *args, **kwargs)
        started = time.time()
        try:
            return original(engine, method, *args, **kwargs)
        finally:  # after a failed load the weights are unknown as well
            with attachment.guard("vllm_plugin.collective_rpc"):
                passed = kwargs.get("kwargs", args[2] if len(args) > 2 else None)  # noqa: PLR2004 - (timeout, args, kwargs)
                _loaded(attachment, method, started, vllm_updates.count_tensors(passed))

    return collective_rpc


def _loaded(attachment: Attachment, method: Any, started: float, tensors: int | None) -> None:
    attachment.observed.timeline.set(started, None)  # other weights; which, only a label or a mark can say
    attachment.observed.updates.loaded(vllm_updates.method_name(method), started, time.time(), tensors)


def _sleep(original: Hook) -> Hook:
    def sleep(engine: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment(engine)
        if attachment is not None and level > 1:  # level 1 brings the same weights back
            with attachment.guard("vllm_plugin.sleep"):
                _loaded(attachment, "sleep", time.time(), None)
        return original(engine, level, *args, **kwargs)

    return sleep


def _shutdown(original: Hook) -> Hook:
    def shutdown(engine: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment(engine)
        if attachment is not None:  # first: the front-end may kill this process while it waits for its workers
            with attachment.guard("vllm_plugin.shutdown"):
                attachment.close()
        return original(engine, *args, **kwargs)

    return shutdown


def _set_weight_version(original: Hook) -> Hook:
    def set_weight_version(engine: Any, weight_version: str, *args: Any, **kwargs: Any) -> Any:
        result = original(engine, weight_version, *args, **kwargs)
        attachment = _attachment(engine)
        if attachment is not None:
            with attachment.guard("vllm_plugin.set_weight_version"):
                now = time.time()
                # "default" is what vLLM says when nobody told it anything.
                attachment.observed.timeline.set(now, None if weight_version == "default" else str(weight_version))
                attachment.observed.updates.labelled(now)
        return result

    return set_weight_version


_ENGINE_HOOKS: Final[dict[str, Callable[[Hook], Hook]]] = {
    "preprocess_add_request": _preprocess_add_request,
    "pause_scheduler": _pause_scheduler,
    "resume_scheduler": _resume_scheduler,
    "collective_rpc": _collective_rpc,
    "sleep": _sleep,
    "set_weight_version": _set_weight_version,
    "shutdown": _shutdown,
}


def _wrap(owner: type, name: str, make: Callable[[Hook], Hook]) -> bool:
    """Replace `owner.name`, once; True when it is wrapped, now or before."""
    original = vars(owner)[name]
    if not hasattr(original, "__logprobe__"):
        replacement: Any = functools.wraps(original)(make(original))
        replacement.__logprobe__ = True
        setattr(owner, name, replacement)
    return True


def _log(health: Health) -> None:
    """Problems that came up before there was a recorder to write them."""
    for problem in health.due():
        LOGGER.warning("this engine is not watched: %s", problem.message)
