"""A host of the conformance suite: the loop of a framework, as far as an integration sees it, under our hooks.

A stand-in has the framework's names, signatures and layouts, hands out what the framework's own code produced where that
is stored here (`stored/`), and checks in `step` that the framework gets its own results.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from logprobe.collectors.recorder.recorder import Recorder

STORED = Path(__file__).with_name("stored")
PACKAGE = "logprobe.collectors.integrations"
RUN = "run"
Rows = dict[str, dict[str, Any]]  # sample id → some columns of its record


class Host:
    """One framework. `begin` comes first, then any number of `step`."""

    framework: ClassVar[str]  # as `logprobe doctor` calls it
    said: ClassVar[str]  # its name in warnings and reports
    count: ClassVar[int]  # sequences of a step
    needed: ClassVar[tuple[str, ...]] = ()  # keys without which no sequence can be recorded
    spared: ClassVar[tuple[str, ...]] = ()  # keys that cost only themselves
    lacks: ClassVar[str] = ""  # what is said of a `later` version; empty: nothing of the framework is wrapped
    repeats: ClassVar[bool] = False  # whether a user may call `begin` twice
    corrects: ClassVar[bool] = False  # whether its loss takes importance weights
    marks: ClassVar[tuple[str, ...]] = ()  # weight versions that a step marks
    logged: ClassVar[dict[int, dict[str, float]]] = {}  # scalars that a step logs, by step
    configured: ClassVar[dict[str, Any]] = {}  # settings that are recorded once, among others; empty: none are

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.at = 3  # the step as the framework counts it
        self.correction = False  # whether the controller may correct; set before `begin`
        self.applied: Any = None  # importance weights that the loss got from us [batch, time], or of flat tokens

    def later(self) -> None:
        """Before `begin`: a version in which a method that is wrapped is another."""
        raise NotImplementedError

    def begin(self) -> None:
        """Our hooks get in, as in a new process."""
        raise NotImplementedError

    def step(self, renamed: str | None = None) -> None:
        """One step of training; in a later version that calls a key otherwise."""
        raise NotImplementedError

    def trained(self) -> Rows:
        """Training records that a step leaves."""
        return {}

    def sampled(self) -> Rows:
        """Rollout records that a step leaves; none where the engine's plugin writes them."""
        return {}

    def wrapped(self) -> Any:
        """The object, class or module of the framework whose attributes our hooks replace."""
        raise NotImplementedError

    def sides(self) -> tuple[Any, Any, Any]:
        """Rollout and trainer log-probs and the mask that the loss sees."""
        raise NotImplementedError

    def fresh(self, name: str) -> ModuleType:
        """The adapter of a new process."""
        full = f"{PACKAGE}.{name}"
        package, known = importlib.import_module(PACKAGE), importlib.import_module(full)
        self.patch.setattr(package, name, known)  # both are put back afterwards
        self.patch.delitem(sys.modules, full)
        return importlib.import_module(full)

    def module(self, name: str, **contents: Any) -> ModuleType:
        """A module of the framework, loaded."""
        made = ModuleType(name)
        vars(made).update(contents)
        self.patch.setitem(sys.modules, name, made)
        return made


def closing(patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What closes every recorder that is made from now on."""
    made: list[Recorder] = []
    begin = Recorder.__init__

    def remembered(self: Recorder, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        made.append(self)

    def close() -> None:
        for recorder in made:
            recorder.close()

    patch.setattr(Recorder, "__init__", remembered)
    return close


def rename(columns: dict[str, Any], key: str | None) -> dict[str, Any]:
    """As a later version of a framework might."""
    if key in columns:
        columns["new_name"] = columns.pop(key)
    return columns


def arrays(name: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """Stored tensors; those below a prefix, without it. Nested tensors are nested again."""
    with np.load(STORED / name) as kept:
        found = {n: torch.from_numpy(kept[n]) for n in kept.files if n != "labels" and n.startswith(prefix)}
    for nested in [each.removesuffix(".values") for each in found if each.endswith(".values")]:
        lengths = found.pop(f"{nested}.lengths").tolist()
        rows = list(found.pop(f"{nested}.values").split(lengths))
        found[nested] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    return {each.removeprefix(prefix): tensor for each, tensor in found.items()}


def labels(name: str) -> dict[str, Any]:
    """What is stored beside tensors."""
    with np.load(STORED / name) as kept:
        found: dict[str, Any] = json.loads(str(kept["labels"]))
    return found
