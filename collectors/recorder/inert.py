"""Recorder for processes that cannot have a working one: training continues without recording."""

from __future__ import annotations

from typing import Any

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.health import LOGGER, Guard, Health, RecorderHealth
from logprobe.collectors.recorder.recorder import Recorder


class InertRecorder(Recorder):
    """Recorder without a destination. It accepts every call and counts it in `health`."""

    writer_id = home = run = ""  # it has none

    def __init__(self) -> None:
        self._health = Health()

    def _nothing(self, *_: Any, **__: Any) -> bool:
        self._health.drop("inert", "nothing is recorded", calls=1)
        return False

    training = rollout = step = checkpoint = weights = report = state = begins = _nothing

    def config(self, *_: Any, **__: Any) -> str:
        """Return "", since no document is recorded."""
        return ""

    def flush(self, timeout: float = 30.0) -> bool:  # noqa: ARG002
        """Return True, since no data is pending."""
        return True

    close = flush

    @property
    def health(self) -> RecorderHealth:
        """Counts of calls that were not recorded."""
        counts = self._health.counts()
        return {"dropped": counts["dropped"], "problems": counts["problems"], "last_error": counts["last_error"]}

    def guard(self, what: str) -> Guard:
        """Return a context like a `Recorder`'s, without writing anything."""
        return Guard(self._health, what)

    def __exit__(self, *_: object) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return InertRecorder, ()

    def __repr__(self) -> str:
        return "InertRecorder()"


def recorder_or_inert(name: str, *arguments: Any, **named: Any) -> Recorder:
    """Return a `Recorder` of these arguments, or an inert one if that fails. The adapter's log states the reason."""
    try:
        return Recorder(*arguments, **named)
    except ConfigurationError as error:
        LOGGER.warning("%s: nothing is recorded: %s", name, error)
        return InertRecorder()
