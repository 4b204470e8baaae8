"""What this machine has that settings or processes depend on; loads nothing."""

from __future__ import annotations

from pathlib import Path


def has_cuda() -> bool:
    """Whether there is a CUDA device; asks the driver, not torch."""
    return Path("/proc/driver/nvidia/version").exists()
