"""Access of the recorder to torch, which is never imported here.

The caller that passes a tensor has imported it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError

# numpy has no bfloat16; its bits travel as two opaque bytes and are widened in the recorder's thread.
BFLOAT16 = np.dtype("V2")
_THREAD_LOCAL: Final = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_IDLE_BYTES: Final = 64 << 20  # of pinned memory that waits to be used again
_beside: Final = threading.local()


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Memory that a device writes to asynchronously: `memory` is uint8 [size], and `owner` the tensor that keeps it."""

    memory: NDArray[np.uint8]
    owner: Any


def is_tensor(value: object) -> bool:
    """Return whether `value` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_device(value: object) -> bool:
    """Return whether `value` is a torch tensor whose memory the host cannot read without waiting."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and not value.is_cpu


def view(value: Any) -> Any:
    """Return a CPU tensor's memory as a numpy array without a copy, a device tensor unchanged, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if not value.is_cpu:
        return value
    if value.requires_grad:
        value = value.detach()
    if value.dtype is torch.bfloat16:
        return value.view(torch.int16).numpy().view(BFLOAT16)
    return value.numpy()


def joined(tensors: Sequence[Any]) -> Any:
    """Join flat tensors of one device in order, in float32, on that device."""
    torch = sys.modules["torch"]
    return torch.cat([tensor.to(torch.float32) for tensor in tensors])


def numpy_dtype(tensor: Any) -> np.dtype[Any]:
    """Return the numpy type that holds `tensor`'s elements bit by bit."""
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:
        return BFLOAT16
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def pinned_block(size: int) -> Block:
    """Return a block that the device can write to asynchronously."""
    memory = sys.modules["torch"].empty(size, dtype=sys.modules["torch"].uint8, pin_memory=True)
    return Block(memory.numpy(), memory)


class PinnedBlocks:
    """Pool of pinned memory. A new allocation by torch could end the graph capture of another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Block] = []

    def take(self, size: int) -> Block:
        """Return a block of at least `size` bytes."""
        with self._lock:
            fitting = [block for block in self._free if size <= block.memory.nbytes <= 2 * size]
            if fitting:
                block = min(fitting, key=lambda block: block.memory.nbytes)
                self._free.remove(block)
                return block
        return pinned_block(size)

    def give_back(self, block: Block) -> None:
        """Release a block. Its content may be overwritten afterwards."""
        with self._lock:
            self._free.append(block)
            while sum(block.memory.nbytes for block in self._free) > _IDLE_BYTES:
                self._free.pop(0)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device had no memory for a tensor."""
    return isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", ()))


def beside_captures() -> None:
    """Keep this thread's CUDA calls from now on from invalidating a graph capture of another thread.

    While a thread captures in CUDA's default mode, every other thread must avoid unsafe calls, such as a wait for an
    event. A forbidden call ends the capture. This thread waits only for its own streams, which belong to no capture.
    """
    if not getattr(_beside, "asked", False) and "torch" in sys.modules and sys.modules["torch"].version.cuda:
        _beside.asked = True
        with suppress(OSError, AttributeError):  # no such driver, so no such captures
            mode = ctypes.c_int(_THREAD_LOCAL)
            ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def refuse_capture(devices: Iterable[Any]) -> None:
    """Raise `InputError` during the capture of a CUDA graph, which an allocation for copies would end."""
    if any(device.type == "cuda" and _backend(device).is_current_stream_capturing() for device in devices):
        raise InputError("a recorder cannot record inside a CUDA graph capture; call it outside the capture")


class DeviceCopies:
    """Copies of tensors on devices, during which the caller's stream never waits.

    The caller's stream makes a clone on the device within microseconds and without waiting. The caller may then change
    its tensor in place immediately. A copy made in parallel could contain half of that change. A side stream waits for
    the clone on the device and does the remaining work. Only the recorder's thread waits for the final event.
    `record_stream` keeps the clone's memory until it has been read. If the device has no memory for a clone, the
    caller's stream makes the copy itself.
    """

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def copy(self, tensors: list[tuple[Any, int]], block: Block) -> list[Any]:
        """Start copying every (tensor, offset in bytes) into `block`. Return the events that mark completion."""
        by_device: dict[Any, list[tuple[Any, int]]] = {}
        for tensor, offset in tensors:
            by_device.setdefault(tensor.device, []).append((tensor, offset))
        return [self._copy_from(device, group, block) for device, group in by_device.items()]

    def _copy_from(self, device: Any, tensors: list[tuple[Any, int]], block: Block) -> Any:
        stream = self._stream(device)
        try:
            clones = [(_clone(tensor), offset) for tensor, offset in tensors]
        except Exception as error:
            if not out_of_memory(error):
                raise
            return self._copy_at_once(device, tensors, block)
        with self._following(device):
            _copy_into(block, clones)
            for source, _ in clones:
                source.record_stream(stream)
            return _event(device, stream)

    @staticmethod
    def _copy_at_once(device: Any, tensors: list[tuple[Any, int]], block: Block) -> Any:
        """Copy on the caller's own stream without device memory. The copy blocks that stream."""
        _copy_into(block, [(tensor.detach(), offset) for tensor, offset in tensors])
        return _event(device, _backend(device).current_stream(device))

    def _following(self, device: Any) -> AbstractContextManager[Any]:
        """Return the side stream, synchronised with the caller's."""
        stream = self._stream(device)
        stream.wait_stream(_backend(device).current_stream(device))
        context: AbstractContextManager[Any] = _backend(device).stream(stream)
        return context

    def _stream(self, device: Any) -> Any:
        if device not in self._streams:
            self._streams[device] = _backend(device).Stream(device)
        return self._streams[device]


def _backend(device: Any) -> Any:
    """Return torch.cuda, or torch.xpu or torch.npu, which have the same interface."""
    return getattr(sys.modules["torch"], device.type)


def _copy_into(block: Block, tensors: Iterable[tuple[Any, int]]) -> None:
    """Queue copies of (tensor, offset in bytes) on the current stream."""
    for source, offset in tensors:
        end = offset + source.numel() * source.element_size()
        block.owner[offset:end].view(source.dtype).view(source.shape).copy_(source, non_blocking=True)


def _clone(tensor: Any) -> Any:
    return tensor.detach().clone(memory_format=sys.modules["torch"].contiguous_format)


def _event(device: Any, stream: Any) -> Any:
    """Return an event at the end of `stream`. A waiting thread sleeps, because spinning would occupy a core."""
    event = _backend(device).Event(**({"blocking": True} if device.type == "cuda" else {}))
    event.record(stream)
    return event
