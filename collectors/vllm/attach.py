"""Attachment of the plugin to an engine: it waits for a scheduler, tests it, and watches it.

`install` wraps the constructor of vLLM's `Scheduler`, which exists once in every engine core, with any front-end. If
the self-test passes, `hooks` hooks this engine. Otherwise it runs unchanged, and a `health` record states the reason.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import weakref
from collections.abc import Callable
from typing import Any, Final

from logprobe.collectors.environment import injects
from logprobe.collectors.health import LOGGER, Guard, Health
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.versions import home_and_run
from logprobe.collectors.vllm import config
from logprobe.collectors.vllm.capture import Capture
from logprobe.collectors.vllm.effective import keep_arguments
from logprobe.collectors.vllm.emitter import CLOSE_SECONDS, Emitter
from logprobe.collectors.vllm.hooks import Hook, hook_direct_loads, hook_engine_cores, hook_scheduler, wrap
from logprobe.collectors.vllm.ids import sample_prefix
from logprobe.collectors.vllm.observed import Observed
from logprobe.collectors.vllm.selftest import self_test
from logprobe.collectors.vllm.step_routes import returns_routes
from logprobe.collectors.vllm.weights import worker
from logprobe.collectors.vllm.weights.adapter_loads import can_watch_adapters
from logprobe.collectors.vllm.weights.exchange import Exchange, folder_of

UNNAMED_RUN: Final = "(no run)"  # where an engine without a run name says that it is not recorded
_LIVE: Final[weakref.WeakSet[Emitter]] = weakref.WeakSet()
_EXECUTORS: Final[weakref.WeakSet[Any]] = (
    weakref.WeakSet()
)  # built in this process; an engine's exists before its scheduler


def install() -> None:
    """Watch every engine that this process builds from now on. Never raise. Repeated calls are allowed."""
    health = Health()
    with Guard(health, "vllm_plugin.register"):
        from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

        wrap(Scheduler, "__init__", _after("attach", _attach))
        from vllm.v1.executor.abstract import Executor  # noqa: PLC0415

        wrap(Executor, "__init__", _after("executor", _EXECUTORS.add))
        from vllm.config import SchedulerConfig  # noqa: PLC0415

        if "get_scheduler_cls" in vars(SchedulerConfig):
            wrap(SchedulerConfig, "get_scheduler_cls", _choosing(Scheduler))
    with Guard(health, "vllm_plugin.arguments"):
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415

        wrap(EngineArgs, "create_engine_config", keep_arguments)
    with Guard(health, "vllm_plugin.workers"):
        from vllm.v1.worker.worker_base import WorkerBase  # noqa: PLC0415

        # A process of its own loads plugins just before it makes its worker.
        wrap(WorkerBase, "__init__", _after("watch_weights", lambda made: worker.watch(made, made.vllm_config)))
    _log(health)


def flush(timeout: float) -> bool:
    """Write the finished requests of all engines in this process. Return whether all of them are durable."""
    done = True
    for emitter in list(_LIVE):
        emitter.drain()
        done = emitter.recorder.flush(timeout) and done
    return done


def _after(where: str, act: Callable[[Any], None]) -> Callable[[Hook], Hook]:
    """Return a wrapper of a constructor that calls `act(object)` afterwards and logs its errors."""

    def make(original: Hook) -> Hook:
        def construct(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            health = Health()
            with Guard(health, f"vllm_plugin.{where}"):
                act(made)
            _log(health)

        return construct

    return make


def _choosing(base: type) -> Callable[[Hook], Hook]:
    """Return a wrapper that reports an engine with a custom scheduler, to which the plugin never attaches."""

    def make(original: Hook) -> Hook:
        def get_scheduler_cls(*args: Any, **kwargs: Any) -> Any:
            chosen = original(*args, **kwargs)
            if not issubclass(chosen, base):
                health = Health()
                with Guard(health, "vllm_plugin.get_scheduler_cls"):
                    problem = f"its scheduler {chosen.__module__}.{chosen.__qualname__} is no {base.__qualname__}"
                    _report_unknown(_recorder(None), [problem])
                _log(health)
            return chosen

        return get_scheduler_cls

    return make


def _recorder(replica: str | None) -> Recorder:
    """Return the recorder of the environment. Raise `ConfigurationError` if it lacks a destination or a run."""
    if not os.environ.get("LOGPROBE_RUN"):
        _report_unnamed()
    home, run = home_and_run()
    return Recorder(home, run, component="vllm_plugin", replica=replica)


def _report_unnamed() -> None:
    """Write a record into the data directory, since few users read the engine's log."""
    recorder = Recorder(os.environ["LOGPROBE_HOME"], UNNAMED_RUN, component="vllm_plugin")
    recorder.report("no_run", "this engine is not recorded: LOGPROBE_RUN is not set", severity="error")
    recorder.close(CLOSE_SECONDS)


def _attach(scheduler: Any) -> None:
    recorder = _recorder(_replica(scheduler.vllm_config.parallel_config))
    problems: list[str] = []
    health = Health()
    with Guard(health, "vllm_plugin.attach"):
        problems += self_test(scheduler)
        if not problems:
            _watch(scheduler, recorder)
    problems += [problem.message for problem in health.due()]
    if problems:
        _report_unknown(recorder, problems)


def _watch(scheduler: Any, recorder: Recorder) -> None:
    exchange = Exchange(folder_of(scheduler.vllm_config))
    emitter = Emitter(_observe(scheduler, recorder, exchange), recorder, exchange)
    missing = hook_engine_cores() + _watch_loads(scheduler.vllm_config, emitter)
    hook_scheduler(scheduler, emitter)  # last: from here on something is collected
    emitter.start()
    _LIVE.add(emitter)
    atexit.register(_close_if_alive, weakref.ref(emitter))  # after the recorder's own, so it runs before that
    _report_attached(emitter, missing)


def _watch_loads(vllm_config: Any, emitter: Emitter) -> list[str]:
    """Watch loads that bypass the engine core. Return the kinds of loads that cannot be observed."""
    executors = [executor for executor in _EXECUTORS if getattr(executor, "vllm_config", None) is vllm_config]
    for executor in executors:
        with emitter.guard("vllm_plugin.loads"):
            hook_direct_loads(executor, emitter)
            emitter.executor = weakref.ref(executor)
            return [] if vllm_config.lora_config is None or can_watch_adapters() else ["loads of adapters"]
    return ["loads that pass by the engine core"]


def _close_if_alive(reference: weakref.ref[Emitter]) -> None:
    emitter = reference()
    if emitter is not None:
        emitter.close()


def _observe(scheduler: Any, recorder: Recorder, exchange: Exchange) -> Observed:
    inject = injects()
    document = config.engine_document(scheduler.vllm_config, injected=inject, effective=exchange.effective())
    return Observed(
        capture=Capture(inject=inject, routes=returns_routes(scheduler.vllm_config)),
        prefix=sample_prefix(),
        engine_config_id=recorder.config(document, kind="engine_config"),
        caches_prefixes=document["summary"]["enable_prefix_caching"],
    )


def _replica(parallel_config: Any) -> str | None:
    """Return `LOGPROBE_REPLICA`, with the data-parallel rank if there are several.

    vLLM runs the replicas of a dense model as engines with size 1 and rank 0, set before their scheduler exists. Their
    number remains in `data_parallel_index`. For number 0, only the name of the process shows that others exist.
    """
    name = os.environ.get("LOGPROBE_REPLICA") or None
    index = getattr(parallel_config, "data_parallel_index", getattr(parallel_config, "data_parallel_rank", 0))
    several = getattr(parallel_config, "data_parallel_size", 1) > 1 or bool(index)
    if not several and not multiprocessing.current_process().name.startswith("EngineCore_DP"):
        return name
    return f"dp{index}" if name is None else f"{name}-dp{index}"


def _report_unknown(recorder: Recorder, problems: list[str]) -> None:
    recorder.report(
        "self_test",
        "the plugin does not know this version of vLLM, so the engine is not recorded: " + "; ".join(problems),
        severity="error",
        details={"ok": False, "problems": problems},
    )
    recorder.close(CLOSE_SECONDS)


def _report_attached(emitter: Emitter, missing: list[str]) -> None:
    emitter.recorder.report(
        "self_test",
        "recording this engine" + (f"; not observable in this vLLM version: {', '.join(missing)}" if missing else ""),
        details={"ok": True, "not_observable": missing, "inject": emitter.observed.capture.inject},
    )


def _log(health: Health) -> None:
    """Log problems from before the creation of the recorder."""
    for problem in health.due():
        LOGGER.warning("this engine is not recorded: %s", problem.message)
