"""What a higher layer, or a larger piece of this one, adds to the service: jobs and actions.

The service knows nothing of alerts; the process that starts it does, and hands it parts. A part is made once the store is open:

    def part(store: Store, stopping: threading.Event) -> Part:
        return Part(jobs=[Job("alerts", 1.0, Evaluator(store, stopping).run_once)])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from logprobe.monitor.service.action import Action
from logprobe.monitor.service.jobs import Job
from logprobe.monitor.store.store import Store


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs run at their own pace, each in a thread of its own; actions are named for the client.

    `armed` says whether it may switch a correction of a run: such a run comes first in every stage. `close` is called once the jobs have ended and before the store is closed, for threads of the part's own.
    """

    jobs: Sequence[Job] = ()
    actions: Mapping[str, Action] = field(default_factory=dict)
    armed: Callable[[str], bool] = lambda _run: False
    close: Callable[[], None] = lambda: None


# Makes a part for an open store. The event is set when the service is about to stop: long work should then end early.
# Raises `ConfigurationError` when what it was configured with is wrong; the service does not start then.
PartMaker: TypeAlias = Callable[[Store, threading.Event], Part]
