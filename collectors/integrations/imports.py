"""Actions that run after the first import of a framework's module. The module itself imports nothing for them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from logprobe.collectors.health import Guard, Health

Action = Callable[[ModuleType], None]


class _Finder:
    """First finder on `sys.meta_path`. It adds the actions to the loading of modules that other finders locate."""

    def __init__(self) -> None:
        self.waiting: defaultdict[str, list[Action]] = defaultdict(list)
        self.health: Final = Health()  # no recorder exists yet; these are logged only

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the other finders with the actions appended, or None for all other modules."""
        if name not in self.waiting:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self and hasattr(finder, "find_spec"))
        spec = next((candidate for finder in others if (candidate := finder.find_spec(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            with Guard(self.health, f"import of {name}"):
                self._follow(name, spec.loader)
        return spec

    def _follow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.act(name, module)

        loader.exec_module = exec_module

    def act(self, name: str, module: ModuleType) -> None:
        """Run the pending actions of `name`, each once."""
        for action in self.waiting.pop(name, []):
            with Guard(self.health, f"import of {name}"):
                action(module)
        for problem in self.health.due(everything=True):
            self.health.log(problem)


_FINDER: Final = _Finder()


def when_imported(name: str, action: Action) -> None:
    """Run `action(module)` once: now if `name` is loaded, else after its import. Errors are logged, not raised."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.waiting[name].append(action)
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _FINDER.act(name, module)
