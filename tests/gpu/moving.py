"""Arguments of tests, on the device."""

from __future__ import annotations

from typing import Any

import torch


def moved(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [moved(item, device) for item in value]
    return {name: moved(item, device) for name, item in value.items()} if isinstance(value, dict) else value
