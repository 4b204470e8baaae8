"""Integration of a framework by wrapping methods. Errors of the wrapper are counted and never raised.

In a process that a framework started, one recorder (`Process`) is created on first use. A trainer that a user passes
has a separate recorder (`Wrapper`, `watched`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from types import ModuleType
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.health import LOGGER, Guard, Health
from logprobe.collectors.recorder.inert import InertRecorder
from logprobe.collectors.recorder.recorder import Recorder

WATCHED: Final = "_logprobe_recorder"  # attribute of a trainer: the recorder that records it already


def version_of(distribution: str) -> str:
    """Return the installed version of a framework, or "unknown version" if it has none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def setting_of(config: Any, path: str) -> Any:
    """Return the setting at a dotted path of names in mappings and objects, or None."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def settings_of(config: Any, wanted: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Return the `wanted` settings (part of the configuration → names in it) by dotted path, None where missing."""
    paths = [f"{part}.{name}" for part, names in wanted.items() for name in names]
    return {path: setting_of(config, path) for path in paths}


# --- What a version of a framework has ---


def unknown_methods(host: object, expected: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the problems of `host`: missing methods, and methods that lack an expected parameter.

    >>> unknown_methods("text", {"split": ("sep",), "fly": ()})
    ['str has no method fly']
    """
    return [problem for name, parameters in expected.items() if (problem := _problem(host, name, parameters))]


def missing_keys(batch: Any, expected: Iterable[str]) -> list[str]:
    """Return the keys or attributes that a framework's batch lacks, because a later version renamed or dropped them."""
    if callable(getattr(batch, "keys", None)):
        keys = set(batch.keys())  # a TensorDict refuses `in`
        return [name for name in expected if name not in keys]
    return [name for name in expected if not hasattr(batch, name)]


def rows_of(batch: Any) -> int:
    """Return the number of sequences in a batch of columns (keys or attributes), or 0 if it has none."""
    columns = batch.values() if callable(getattr(batch, "values", None)) else vars(batch).values()
    return next((len(c) for c in columns if isinstance(c, list) or getattr(c, "ndim", None)), 0)


def usable(
    recorder: Recorder | None,
    component: str,
    batch: Any,
    needed: Iterable[str],
    *,
    spared: Iterable[str] = (),
    step: int,
    lost: int,
) -> bool:
    """Return whether a batch has all `needed` keys, and report missing ones, also of the `spared`.

    `lost`: number of sequences that cannot be recorded if a needed key is missing.
    """
    unusable = missing_keys(batch, needed)
    missing = [*unusable, *missing_keys(batch, spared)]
    if missing and recorder is not None:
        report_missing(recorder, component, missing, step=step, lost=lost if unusable else 0)
    return not unusable


def report_missing(
    recorder: Recorder, component: str, missing: Sequence[str], *, step: int | None, lost: int = 0
) -> None:
    """Report missing keys. `lost`: number of sequences that cannot be recorded without them."""
    words = f"the batch has no {', '.join(missing)}, which this version of logprobe expects of {component}; "
    words += "nothing of it is recorded" if lost else "the rest of it is recorded"
    recorder.report("missing_key", words, severity="warning", component=component, step=step, sequences=lost)


def record_rollout(recorder: Recorder, mask_BT: Any, *, token_ids: Any, logprobs: Any, **more: Any) -> None:
    """Record the engine's side as the framework received it, tensors [batch, time], if no plugin records it."""
    places = [row.bool().nonzero().flatten() for row in mask_BT]
    tokens, values = ([row[at] for row, at in zip(rows, places, strict=True)] for rows in (token_ids, logprobs))
    recorder.rollout(token_ids=tokens, logprobs=values, **more)


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
    """Return the signature of a method, or of the method it overrides if it forwards any arguments (``*args``)."""
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


# --- Wrapping ---


class Wrapper:
    """Wrapper of methods of a framework's objects, or functions of its classes and modules.

    The framework's own result and errors pass through unchanged.
    """

    def __init__(self, recorder: Recorder | None, name: str) -> None:
        """Set the recorder and the `name` of the integration in its reports."""
        self.recorder = recorder
        self.name = name
        self._health = Health()  # of a process without a recorder

    def guard(self, what: str) -> AbstractContextManager[object]:
        """Return a context that counts errors, in the recorder if one exists at the end of the block."""
        what = f"{self.name}.{what}"
        return self._early(what) if self.recorder is None else self.recorder.guard(what)

    @contextmanager
    def _early(self, what: str) -> Iterator[None]:
        with Guard(self._health, what):
            yield
        if self.recorder is not None:
            for problem in self._health.due(everything=True):
                self.recorder.report(problem.event, problem.message, severity=problem.severity, component=self.name)

    def before(self, host: Any, method: str, look: Callable[..., object]) -> None:
        """Call `look(*arguments)` before each `host.method(*arguments)`. Keyword arguments are passed by position."""
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
        """Call `look(result, *arguments)` after each `host.method(*arguments)`."""

        def unchanged(*arguments: Any, **named: Any) -> None:
            look(*arguments, **named)

        self.instead(host, method, unchanged)

    def instead(self, host: Any, method: str, replace: Callable[..., Any]) -> None:
        """Return `replace(result, *arguments)` from each `host.method(*arguments)`.

        If the replacement is None or fails, return the framework's own result.
        """
        original = getattr(host, method)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            result, other = original(*arguments, **named), None
            with self.guard(method):
                other = replace(result, *arguments, **named)
            return result if other is None else other

        setattr(host, method, watched)

    def around(self, host: Any, method: str, before: Callable[..., Any], look: Callable[..., object]) -> None:
        """Call `before(*arguments)`, which may replace the arguments, the method, and `look(result, *arguments)`."""
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


# --- Recorders ---


class Process(Wrapper):
    """Wrapper with one recorder for one framework in this process, created on first use.

    Adapters that wrap classes also exist in processes that never record. Without a usable ``LOGPROBE_HOME`` there is no
    recorder, and the log reports this once.
    """

    def __init__(self, framework: str, *, title: str | None = None, component: str = "trainer") -> None:
        super().__init__(None, framework)
        self.title = title or framework  # of the framework in reports, with its version
        self.step: int | None = None  # that is trained now, if the framework tells it apart from its batches
        self._component = component
        self._lock = threading.Lock()
        self._tried = False
        self._begun = False

    def start(self, run: str | None = None) -> Recorder | None:
        """Return the recorder, created by the first call. `run` is its name if ``LOGPROBE_RUN`` is not set."""
        with self._lock:
            if not self._tried:
                self._tried = True
                self.recorder = self._made(run or self.name)
        return self.recorder

    def _made(self, run: str) -> Recorder | None:
        try:
            return Recorder(run=None if os.environ.get("LOGPROBE_RUN") else run, component=self._component)
        except ConfigurationError as error:
            LOGGER.warning("%s: nothing is recorded: %s", self.name, error)
            return None

    def begin(
        self, run: str | None = None, *, trainer: str = "", config: Callable[[], Mapping[str, object]] | None = None
    ) -> Recorder | None:
        """Return the recorder. On the first call, record the trainer's configuration and the start of recording."""
        recorder = self.start(run)
        if recorder is not None and not self._begun:
            self._begun = True
            if config is not None:
                recorder.config(config(), kind="trainer_config")
            self._say(recorder, f"{self.title}{trainer and f': {trainer}'} is recorded")
        return recorder

    def knows(self, owner: Any, methods: Mapping[str, tuple[str, ...]], *problems: str) -> bool:
        """Return whether `owner` has these methods and no other `problems`, and report what is missing."""
        found = [*unknown_methods(owner, methods), *problems]
        recorder = self.start() if found else None
        if recorder is not None:
            words = f"{self.title} is unknown: {'; '.join(found)}; this part of it is not recorded"
            self._say(recorder, words, "warning")
        return not found

    def has(self, batch: Any, expected: Iterable[str], step: int, lost: int | None = None) -> bool:
        """Return whether a batch has all keys that a record needs.

        Report the missing keys and the number of lost sequences, by default its rows.
        """
        lost = rows_of(batch) if lost is None else lost
        return usable(self.begin(), self.name, batch, expected, step=step, lost=lost)

    def scalars(self, step: int, logged: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> None:
        """Record the numbers that the framework logs for a step, except those whose names start with `without`."""
        scalars = {k: float(v) for k, v in logged.items() if isinstance(v, Real) and not k.startswith(without)}
        if self.recorder is not None and scalars:
            self.recorder.step(int(step), scalars)

    def incomparable(self, step: int, words: str) -> None:
        """Report a batch whose log-probs cannot be compared."""
        if self.recorder is not None:
            self.recorder.report("no_logprobs", words, severity="warning", component=self.name, step=step)

    def flush(self) -> None:
        """Make all records durable."""
        if self.recorder is not None:
            self.recorder.flush()

    def _say(self, recorder: Recorder, words: str, severity: str = "info") -> None:
        recorder.report("self_test", words, severity=severity, component=self.name)


def watched(
    trainer: Any,
    component: str,
    *,
    name: str,
    recorder: Callable[[], Recorder],
    problems: Callable[[], Iterable[str]],
    attach: Callable[[Recorder], None],
) -> Recorder:
    """Attach to a trainer once and return its recorder.

    Args:
        trainer: trainer of the framework.
        component: name of the integration, in reports.
        name: name of the trainer with its version, in reports.
        recorder: function that returns the recorder, or an inert one if none can be created.
        problems: function that returns the reasons why this version cannot be recorded. With any, the trainer stays
            unchanged.
        attach: function that wraps the trainer's methods.
    """
    existing: Recorder | None = getattr(trainer, WATCHED, None)
    if existing is not None:
        return existing
    chosen = recorder()
    setattr(trainer, WATCHED, chosen)
    if isinstance(chosen, InertRecorder):
        return chosen
    if found := list(problems()):
        words = f"{name} is not supported: {'; '.join(found)}; nothing is recorded"
        chosen.report("self_test", words, severity="warning", component=component)
        return chosen
    with chosen.guard(f"{component}.watch"):
        attach(chosen)
        chosen.report("self_test", f"{name} is recorded", component=component)
    return chosen
