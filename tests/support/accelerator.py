"""A torch device that is none: tensors that say they lie on ``cuda:0`` and whose operations run on the host.

It enforces what the real one does: memory of the device is not the host's to read, operands lie on one device, and new tensors are made
there only on a stream. It counts what travels to the host and who asked for which operation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("cuda:0")
_MOVES = ("_to_copy", "copy_")


class Accelerated(torch.Tensor):
    """A tensor "on the device"; `inner` has its numbers."""

    inner: torch.Tensor
    log: Accelerator

    @staticmethod
    def __new__(cls, inner: torch.Tensor, log: Accelerator) -> Self:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())
        made.inner, made.log = inner, log
        return made

    @property
    def device(self) -> torch.device:  # only Python is told: torch itself would look for the driver
        return DEVICE

    @property
    def is_cpu(self) -> bool:
        return False

    def to(self, target: Any = None, **options: Any) -> Any:
        if target is None or isinstance(target, torch.dtype):
            return super().to(**options) if target is None else super().to(target, **options)
        assert target == DEVICE, "copies to the host are made by cpu()"
        return self

    def cpu(self) -> torch.Tensor:
        self.log.operations.setdefault(threading.current_thread().name, set()).add("cpu")
        self.log.bytes_to_host += self.inner.nbytes
        return self.inner.clone()

    def numpy(self, *_: object, **__: object) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def record_stream(self, stream: object) -> None:
        self.log.recorded.append(stream)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        log = next(arg for arg in _flat((args, kwargs)) if isinstance(arg, Accelerated)).log
        return log.run(func, args, kwargs or {})


class Event:
    """Of a stream."""

    def __init__(self, *, blocking: bool = False) -> None:
        assert blocking, "who waits must sleep"

    def record(self, stream: object) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        """Everything has long been done."""

    def query(self) -> bool:
        """Whether the host may know that."""
        return Event.seen

    seen = True


class Stream:
    """One of the device's queues."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.waited_for: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited_for.append(other)


class Accelerator:
    """In place of `torch.cuda`, as far as the recorder uses it."""

    Stream = Stream
    Event = Event

    def __init__(self) -> None:
        self.host_stream = Stream()
        self.recorded: list[object] = []
        self.operations: dict[str, set[str]] = {}  # by thread
        self.bytes_to_host = 0
        self._streams = threading.local()

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self, device: torch.device) -> Stream:
        found: Stream = getattr(self._streams, "current", self.host_stream)
        return found

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._streams.current = self.current_stream(DEVICE), stream
        try:
            with _Mode(self):
                yield
        finally:
            self._streams.current = before

    def on(self, tensor: torch.Tensor) -> Accelerated:
        """A copy on the device."""
        return Accelerated(tensor.detach().clone(), self)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.__name__.partition(".")[0]
        self.operations.setdefault(threading.current_thread().name, set()).add(name)
        tensors = [arg for arg in _flat((args, kwargs)) if isinstance(arg, torch.Tensor)]
        here = [arg for arg in tensors if isinstance(arg, Accelerated)]
        if here and name not in _MOVES and any(not isinstance(arg, Accelerated) and arg.dim() for arg in tensors):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        target = kwargs.get("device")
        arrives = target is not None and target.type == DEVICE.type
        wrappers = {id(arg.inner): arg for arg in here}
        result = func(*tree_map(_inner, args), **{k: tree_map(_inner, v) for k, v in _on_host(kwargs).items()})
        if not here and not arrives:
            return result

        def wrap(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return wrappers[id(x)] if id(x) in wrappers else Accelerated(x, self)

        return tree_map(wrap, result)


class _Mode(TorchDispatchMode):
    """Catches what has no tensor of the device among its arguments: `torch.empty(..., device=...)`, `.to(device)`."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._accelerator.run(func, args, kwargs or {})


def _flat(tree: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Accelerated) else value


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
