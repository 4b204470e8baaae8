"""Actions that a client may request from the service, without the imports of jobs and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Action:
    """Action that a client may request through the Flight endpoint.

    Any thread may call `run`, which takes the client's JSON object and returns one. A `LogprobeError` is sent to the
    client. An action must be idempotent, since clients retry after a broken connection.
    """

    words: str
    run: Callable[[Mapping[str, Any]], Mapping[str, object]]
