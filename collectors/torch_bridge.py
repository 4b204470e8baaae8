"""The part of the recorder that touches torch. torch is never imported here: whoever hands us a tensor has imported it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from logprobe.collectors.buffers import Block
from logprobe.collectors.errors import InputError

# numpy has no bfloat16; its bits travel as two opaque bytes and are widened in the recorder's thread.
BFLOAT16 = np.dtype("V2")


def on_device(value: object) -> bool:
    """Whether `value` is a torch tensor whose memory the host cannot read without waiting."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and not value.is_cpu


def view(value: Any) -> Any:
    """A CPU tensor's memory as a numpy array, without a copy; a device tensor as it is; None for anything else."""
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


def numpy_dtype(tensor: Any) -> np.dtype[Any]:
    """The numpy type that holds `tensor`'s elements bit by bit."""
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:
        return BFLOAT16
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def pinned_block(size: int) -> Block:
    """A block the device can write to on its own."""
    memory = sys.modules["torch"].empty(size, dtype=sys.modules["torch"].uint8, pin_memory=True)
    array = memory.numpy()
    return Block(array, memory, array.data)


class DeviceCopies:
    """Copies from devices into pinned blocks that the caller's stream never waits for.

    The caller's stream makes a clone on the device, which costs microseconds and no waiting: the caller may change its tensor in
    place right after the call, and a copy made beside it could see half of that. The side stream waits for the clone (on the
    device), copies it to the host, and records an event; only the recorder's thread waits for that event. `record_stream`
    keeps the clone's memory from being reused before it has been read.
    """

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def copy(self, tensors: list[tuple[Any, int]], block: Block) -> list[Any]:
        """Start copying every (tensor, offset in bytes) into `block`; returns the events that say when it is done."""
        by_device: dict[Any, list[tuple[Any, int]]] = {}
        for tensor, offset in tensors:
            by_device.setdefault(tensor.device, []).append((tensor, offset))
        return [self._copy_from(device, group, block) for device, group in by_device.items()]

    def _copy_from(self, device: Any, tensors: list[tuple[Any, int]], block: Block) -> Any:
        torch = sys.modules["torch"]
        backend = getattr(torch, device.type)  # torch.cuda; torch.xpu and torch.npu have the same interface
        if device.type == "cuda" and backend.is_current_stream_capturing():
            raise InputError("recording inside a CUDA graph capture is not possible; call the recorder outside of it")
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = backend.Stream(device)
        clones = [(t.detach().clone(memory_format=torch.contiguous_format), offset) for t, offset in tensors]
        stream.wait_stream(backend.current_stream(device))
        with backend.stream(stream):
            for source, offset in clones:
                end = offset + source.numel() * source.element_size()
                target = block.owner[offset:end].view(source.dtype).view(source.shape)
                target.copy_(source, non_blocking=True)
                source.record_stream(stream)
            event = backend.Event()
            event.record(stream)
        return event
