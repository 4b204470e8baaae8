"""Looking over a framework's shoulder: methods of one object are wrapped, and what goes wrong in our part is counted, not raised."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from logprobe.collectors.health import Guard
from logprobe.collectors.integrations.process import Process
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


def _problem(host: object, name: str, parameters: tuple[str, ...]) -> str | None:
    method, owner = getattr(host, name, None), _name_of(host)
    if not callable(method):
        return f"{owner} has no method {name}"
    known = inspect.signature(method).parameters
    missing = [parameter for parameter in parameters if parameter not in known]
    return f"{owner}.{name} has no parameter {', '.join(missing)}" if missing else None


def _name_of(host: object) -> str:
    return host.__name__ if isinstance(host, type | ModuleType) else type(host).__name__


class Wrapper:
    """Wraps methods of a framework's objects, or functions of its classes and modules. The framework's own result and errors pass through untouched."""

    def __init__(self, recorder: Recorder | Process, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def guard(self, what: str) -> Guard:
        """Counts whatever its block raises."""
        return self._recorder.guard(f"{self._name}.{what}")

    def before(self, host: Any, method: str, look: Callable[..., object]) -> None:
        """Before each `host.method(*arguments)`, `look(*arguments)` in a guard; arguments by name come in their place."""
        original = getattr(host, method)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            with self.guard(method):
                bound = signature.bind(*arguments, **named)
                look(*bound.args, **bound.kwargs)
            return original(*arguments, **named)

        setattr(host, method, watched)

    def after(self, host: Any, method: str, look: Callable[..., object]) -> None:
        """After each `host.method(*arguments)`, `look(result, *arguments)` in a guard."""
        original = getattr(host, method)

        @functools.wraps(original)
        def watched(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            with self.guard(method):
                look(result, *arguments, **named)
            return result

        setattr(host, method, watched)

    def around(self, host: Any, method: str, before: Callable[..., Any], look: Callable[..., object]) -> None:
        """`before(*arguments)` may name other arguments (None: the framework's own); `look(result, *arguments)` follows the call."""
        original = getattr(host, method)
        signature = inspect.signature(original)

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
