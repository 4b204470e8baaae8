"""Looking over a framework's shoulder: methods of one object are wrapped, and what goes wrong in our part is counted,
not raised.

A process that a framework started has one recorder, made when there is something to record.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.health import LOGGER, Guard, Health
from logprobe.collectors.recorder.recorder import Recorder


def version_of(distribution: str) -> str:
    """The installed version of a framework, "unknown version" where it has none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def setting_of(config: Any, path: str) -> Any:
    """The setting at a path of names with dots, in mappings and objects; None where there is none."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def unknown_methods(host: object, expected: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What `host` lacks: methods by name, each with the parameters that are read. Empty: it is known.

    >>> unknown_methods("text", {"split": ("sep",), "fly": ()})
    ['str has no method fly']
    """
    return [problem for name, parameters in expected.items() if (problem := _problem(host, name, parameters))]


def missing_keys(batch: Any, expected: Sequence[str]) -> list[str]:
    """Which of the keys, or attributes, that a framework's batch has are not there: a later version has renamed or
    dropped them."""
    if callable(getattr(batch, "keys", None)):
        keys = set(batch.keys())  # a TensorDict refuses `in`
        return [name for name in expected if name not in keys]
    return [name for name in expected if not hasattr(batch, name)]


def rows_of(batch: Any) -> int:
    """Sequences in a batch of columns, keys or attributes of it; 0 where it has none."""
    columns = batch.values() if callable(getattr(batch, "values", None)) else vars(batch).values()
    return next((len(c) for c in columns if isinstance(c, list) or getattr(c, "ndim", None)), 0)


def report_missing(
    recorder: Recorder, component: str, missing: Sequence[str], *, step: int | None, lost: int = 0
) -> None:
    """Names the keys. `lost`: sequences that cannot be recorded without them."""
    words = f"the batch has no {', '.join(missing)}, which this version of logprobe expects of {component}; "
    words += "nothing of it is recorded" if lost else "the rest of it is recorded"
    recorder.report("missing_key", words, severity="warning", component=component, step=step, sequences=lost)


def _problem(host: object, name: str, parameters: tuple[str, ...]) -> str | None:
    method, owner = getattr(host, name, None), _name_of(host)
    if not callable(method):
        return f"{owner} has no method {name}"
    accepted = _signature(host, name).parameters
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in accepted.values()):
        return None
    missing = [parameter for parameter in parameters if parameter not in accepted]
    return f"{owner}.{name} has no parameter {', '.join(missing)}" if missing else None


def _signature(host: Any, name: str) -> inspect.Signature:
    """Of a method; where a subclass passes on whatever comes (``*args``), that of the method it overrides."""
    own = inspect.signature(getattr(host, name))
    if isinstance(host, ModuleType) or not any(p.kind is p.VAR_POSITIONAL for p in own.parameters.values()):
        return own
    for owner in (host if isinstance(host, type) else type(host)).__mro__:
        signature = inspect.signature(vars(owner)[name]) if callable(vars(owner).get(name)) else own
        if not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            parameters = list(signature.parameters.values())
            return signature if isinstance(host, type) else signature.replace(parameters=parameters[1:])
    return own


def _name_of(host: object) -> str:
    return host.__name__ if isinstance(host, type | ModuleType) else type(host).__name__


WATCHED: Final = "_logprobe_recorder"  # of a trainer: the recorder that records it already


class Wrapper:
    """Wraps methods of a framework's objects, or functions of its classes and modules. The framework's own result and
    errors pass through untouched."""

    def __init__(self, recorder: Recorder | Process, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def guard(self, what: str) -> Guard:
        """Counts whatever its block raises."""
        return self._recorder.guard(f"{self._name}.{what}")

    def before(self, host: Any, method: str, look: Callable[..., object]) -> None:
        """Before each `host.method(*arguments)`, `look(*arguments)` in a guard; arguments by name come in their
        place."""
        original = getattr(host, method)
        signature = _signature(host, method)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            with self.guard(method):
                bound = signature.bind(*arguments, **named)
                look(*bound.args, **bound.kwargs)
            return original(*arguments, **named)

        setattr(host, method, watched)

    def after(self, host: Any, method: str, look: Callable[..., object]) -> None:
        """After each `host.method(*arguments)`, `look(result, *arguments)` in a guard."""

        def unchanged(*arguments: Any, **named: Any) -> None:
            look(*arguments, **named)

        self.instead(host, method, unchanged)

    def instead(self, host: Any, method: str, replace: Callable[..., Any]) -> None:
        """`replace(result, *arguments)` may name another result of `host.method(*arguments)`; None, or an error of
        ours: the framework's own."""
        original = getattr(host, method)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            result, other = original(*arguments, **named), None
            with self.guard(method):
                other = replace(result, *arguments, **named)
            return result if other is None else other

        setattr(host, method, watched)

    def around(self, host: Any, method: str, before: Callable[..., Any], look: Callable[..., object]) -> None:
        """`before(*arguments)` may name other arguments (None: the framework's own); `look(result, *arguments)` follows
        the call."""
        original = getattr(host, method)
        signature = _signature(host, method)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            with self.guard(method):
                bound = signature.bind(*arguments, **named)
                arguments, named = before(*bound.args) or bound.args, bound.kwargs
            result = original(*arguments, **named)
            with self.guard(method):
                look(result, *arguments)
            return result

        setattr(host, method, watched)


class Process:
    """At most one recorder for what one adapter sees in this process.

    Adapters that wrap classes exist before anything is to be recorded, in processes that never record. Where a recorder
    cannot be made, as without ``LOGPROBE_HOME``, there is none, and the log says so once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._health = Health()
        self._tried = False
        self.recorder: Recorder | None = None

    def start(self, run: str | None = None, rank: int | None = None, component: str = "trainer") -> Recorder | None:
        """The recorder, made by the first call; `run` counts where ``LOGPROBE_RUN`` is not set."""
        with self._lock:
            if not self._tried:
                self._tried = True
                self.recorder = self._made(run, rank, component)
        return self.recorder

    def _made(self, run: str | None, rank: int | None, component: str) -> Recorder | None:
        try:
            return Recorder(run=None if os.environ.get("LOGPROBE_RUN") else run, rank=rank, component=component)
        except ConfigurationError as error:
            LOGGER.warning("%s: nothing is recorded: %s", self._name, error)
            return None

    def guard(self, what: str) -> Guard:
        """A context whose errors are counted, in the recorder where there is one."""
        return Guard(self._health, what) if self.recorder is None else self.recorder.guard(what)
