"""LoRA adapters that a worker loads because of a request, a call, or a process that holds the worker.

vLLM reads an adapter again after its eviction. A request with ``load_inplace=True`` causes a read at every step. All
reads pass through one method of the worker's adapter manager. The content is hashed completely, so that equal content
is recognized. The worker's own thread reports it before the step's outputs.
"""

from __future__ import annotations

import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from logprobe.collectors.clock import machine, offset_now
from logprobe.collectors.fingerprint import Fingerprint, key
from logprobe.collectors.health import Guard, Health
from logprobe.collectors.recorder import torch_bridge
from logprobe.collectors.vllm.weights.exchange import Exchange, Loaded

_OUTSIDE: Final = object()  # of every step
_WATCHED: Final[weakref.WeakSet[AdapterLoads]] = weakref.WeakSet()


class AdapterLoads:
    """Adapters that one worker loads, reported to its engine.

    Any thread may call `send`, and only the worker's thread the other methods.
    """

    def __init__(self, worker: Any, exchange: Exchange) -> None:
        self._worker = weakref.ref(worker)
        self._exchange = exchange
        self._health = Health()
        self._step: Any = _OUTSIDE  # when the step that runs was scheduled
        self._held: dict[int, tuple[str, str]] = {}  # number → path and digest
        self._unsent: deque[Loaded] = deque()
        self._sending = threading.Lock()
        _WATCHED.add(self)

    def are_of(self, manager: Any) -> bool:
        """Return whether `manager` holds this worker's adapters."""
        runner = getattr(self._worker(), "model_runner", None)
        return getattr(runner, "lora_manager", None) is manager

    def within_step(self, execute_model: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `execute_model` to record the time of the current step."""

        def stepping(*args: Any, **kwargs: Any) -> Any:
            step = args[0] if args else kwargs.get("scheduler_output")
            self._step = getattr(step, "logprobe_scheduled", None)
            try:
                return execute_model(*args, **kwargs)
            finally:
                self._step = _OUTSIDE

        return stepping

    def loaded(self, request: Any, model: Any, began: float) -> None:
        """Record that `model` was read for `request` since `began`."""
        content: Fingerprint | None = None
        with Guard(self._health, "vllm_worker.read_adapter", cost=False):
            content = fingerprint_of(model)
        with Guard(self._health, "vllm_worker.adapter_loaded", cost=False):
            number, path = int(request.lora_int_id), str(request.lora_path)
            digest = None if content is None else content.digest
            if digest is not None and self._held.get(number) == (path, digest):
                return
            self._held[number] = (path, digest or "")
            has_step = self._step is not None  # else it cannot be said which steps compute with it
            self._unsent.append(
                {
                    "name": str(request.lora_name),
                    "number": number,
                    "path": path if has_step else None,
                    "step": None if self._step is _OUTSIDE else self._step,
                    "began": began,
                    "written": _written(Path(path)),
                    "wall": offset_now(),
                    "machine": machine(),
                    "keys": None if content is None else content.keys,
                    "hashes": None if content is None else content.hashes.tolist(),
                }
            )
            self.send()

    def send(self) -> None:
        """Write unreported adapters. Raise `OSError`, after which the next call retries."""
        with self._sending:
            while self._unsent:
                self._exchange.adapters.append(self._unsent[0])
                self._unsent.popleft()


def watch_adapters() -> None:
    """Watch every adapter that this process loads from now on. If that is impossible, adapter versions are unknown."""
    if can_watch_adapters():
        from vllm.lora.worker_manager import WorkerLoRAManager  # noqa: PLC0415

        original = WorkerLoRAManager._load_adapter  # noqa: SLF001
        if not hasattr(original, "__logprobe__"):
            WorkerLoRAManager._load_adapter = _telling(original)  # noqa: SLF001


def can_watch_adapters() -> bool:
    """Return whether this vLLM has the method through which all adapter loads pass."""
    from vllm.lora.worker_manager import WorkerLoRAManager  # noqa: PLC0415

    return callable(getattr(WorkerLoRAManager, "_load_adapter", None))


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    def _load_adapter(manager: Any, lora_request: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        model = original(manager, lora_request, *args, **kwargs)
        for loads in [watched for watched in _WATCHED if watched.are_of(manager)]:
            loads.loaded(lora_request, model, began)
        return model

    _load_adapter.__logprobe__ = True  # type: ignore[attr-defined]
    return _load_adapter


def fingerprint_of(model: Any) -> Fingerprint:
    """Return a hash of all values of each tensor of an adapter as vLLM read it, and of the tensors' scales."""
    tensors = dict(_tensors(model))
    return Fingerprint(tuple(tensors), np.array([zlib.crc32(data) for data in tensors.values()], np.uint32))


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    for module, weights in sorted(model.loras.items()):
        for attribute, value in sorted(vars(weights).items()):
            for index, tensor in enumerate(value if isinstance(value, list | tuple) else [value]):
                name = f"{module}.{attribute}" + (f".{index}" if isinstance(value, list | tuple) else "")
                if torch_bridge.is_tensor(tensor):
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    flat = np.ascontiguousarray(torch_bridge.view(tensor.cpu().contiguous()))
                    yield key(name, dtype, tensor.shape), flat.reshape(-1).view(np.uint8)
                else:
                    yield name, repr(tensor).encode()


def _written(path: Path) -> float | None:
    """Return the last change or creation time of an adapter's files on the monotonic clock, or None if unknown."""
    try:
        changed = [path.lstat().st_ctime, path.stat().st_ctime]
        changed += [file.stat().st_ctime for file in path.glob("adapter_*")]
    except OSError:
        return None
    return max(changed) - offset_now()
