"""Version of this package. Imported on demand, because the lookup takes a tenth of a quick command's time."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version of logprobe, or ``unknown`` for a checkout that was never installed."""
    try:
        return version("logprobe")
    except PackageNotFoundError:
        return "unknown"
