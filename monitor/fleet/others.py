"""The other homes of a fleet: all that most commands need to know of one. What has no fleet loads nothing for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from logprobe.monitor.home import Home

VARIABLE: Final = "LOGPROBE_FLEET"


def other_homes(home: Home | None, environment: Mapping[str, str]) -> list[str]:
    """Homes of the fleet that ``LOGPROBE_FLEET`` names, other than `home`; none where `home` is not one of them. Raises
    `ConfigurationError`."""
    folder = environment.get(VARIABLE)
    if not folder:
        return []
    from logprobe.monitor.fleet.table import Fleet  # noqa: PLC0415 - see above

    homes = [
        str(Path(service.home).expanduser().resolve()) for service in Fleet(Path(folder).expanduser()).services.values()
    ]
    if home is None:
        return homes
    return [where for where in homes if where != str(home.path)] if str(home.path) in homes else []
