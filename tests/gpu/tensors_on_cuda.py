"""A plugin for pytest: what tests make of torch is made on the CUDA device, so that cases written for the host try every hook there.

`python -m pytest -p tensors_on_cuda tests/collectors/integrations`. Only calls from files of tests are changed: a tensor that the product makes is
where the product puts it, and where the product reads a tensor of the device as if it lay on the host, it fails as it would in a trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

_TESTS = str(Path(__file__).resolve().parents[1])
_PRODUCT = tuple(f"/{part}/" for part in ("collectors", "monitor", "alerts", "app"))
_MAKERS = (
    "tensor",
    "from_numpy",
    "as_tensor",
    "zeros",
    "ones",
    "full",
    "empty",
    "arange",
    "linspace",
    "rand",
    "randn",
    "randint",
)


def _asked_by_tests() -> bool:
    """Whether the nearest caller that is the product or a test is a test."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TESTS):
            return True
        if any(part in file for part in _PRODUCT):
            return False
        frame = frame.f_back
    return True


def _there(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def made(*arguments: Any, **named: Any) -> Any:
        value = original(*arguments, **named)
        if named.get("device") is not None or not _asked_by_tests():
            return value
        return value.detach().cuda().requires_grad_(value.requires_grad)

    return made


def _on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def read(tensor: Any, *arguments: Any, **named: Any) -> Any:
        return original(tensor.cpu() if tensor.is_cuda and _asked_by_tests() else tensor, *arguments, **named)

    return read


def pytest_configure() -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: torch.cuda.is_available() is false")
    for name in _MAKERS:
        setattr(torch, name, _there(getattr(torch, name)))
    torch.Tensor.numpy = _on_host(torch.Tensor.numpy)
    torch.Tensor.__array__ = _on_host(torch.Tensor.__array__)
