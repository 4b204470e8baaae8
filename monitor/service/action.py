"""Actions that a client may request from the service, without the imports of jobs and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Action:
    """Something a client may ask the service to do, over its Flight endpoint.

    `run` is called from any thread with the JSON object the client sent, and returns one. Its `LogprobeError`s reach
    the client. Clients ask again when a connection broke, so doing it twice must be the same as doing it once.
    """

    words: str
    run: Callable[[Mapping[str, Any]], Mapping[str, object]]
