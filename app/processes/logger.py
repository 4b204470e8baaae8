"""The process of one entry of `loggers`: ``python -m logprobe.app.processes.logger --home DIR --number N``.

The process is separate from the service because third-party code may hang or crash. `logprobe up` restarts the process
with back-off. Export then resumes after the last step of the target.

loggers:
  - to: tensorboard
    dir: /logs/tensorboard
  - to: wandb
    project: my-project
    runs: "ablation-*"
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter

from logprobe.app.processes.supervisor import stop_on_signals
from logprobe.app.runs import Run, runs_of
from logprobe.app.text.judgement import cause, line
from logprobe.collectors.errors import ConfigurationError, LogprobeError, ServiceUnavailableError
from logprobe.collectors.plain_text import complain, harmless
from logprobe.monitor import queries
from logprobe.monitor.exporters.loggers import Logger, Standing, Target, open_target, push, require
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.liveness import State
from logprobe.monitor.reader import Reader, connect
from logprobe.monitor.settings import settings_file

_KIND: Final = TypeAdapter(tuple[Logger, ...])


def load(home: Home) -> tuple[Logger, ...]:
    """Return the loggers of a data directory.

    Raises `ConfigurationError` with file and line, and `MissingExtraError` if a package is not installed.
    """
    loggers = settings_file.read(home.path, "loggers", _KIND, ())
    for logger in loggers:
        require(logger.to)
    return loggers


def _entry(home: Home, number: int) -> Logger:
    loggers = load(home)
    if number >= len(loggers):  # since `logprobe up` started
        raise ConfigurationError(f"{home.path}: `loggers` has no entry {number + 1} any more; restart `logprobe up`")
    return loggers[number]


def checked(where: str, document: Any) -> tuple[Logger, ...]:
    """Return the loggers that plain data declares. Raises `ConfigurationError` with the name of the wrong key."""
    return settings_file.checked(document, "loggers", _KIND, where)


_SECONDS: Final = 5.0
# Records of a step come from several processes; while newer steps are this few, some may be missing.
SETTLE_STEPS: Final = 2
_OVER: Final = frozenset({State.ENDED, State.FAILED, State.STALE})
_OLD: Final = timedelta(days=1)  # what ended before that is pushed by hand: `logprobe export`


def standing(judgement: Judgement, run: str, page: str | None = None) -> Standing:
    """Return the judgement in the form that targets show. `page`: URL of the dashboard, or None if unknown."""
    query = urlencode({"run": run}, quote_via=quote)
    return Standing(
        severity=judgement.severity,
        verdict=judgement.verdict,
        cause=harmless(cause(judgement)),
        since_step=judgement.since,
        words=harmless(line(judgement)),
        link=None if page is None else f"{page.rstrip('/')}/?{query}",
        step=judgement.step,
    )


class Following:
    """Export of the active runs of a data directory, each until its end."""

    def __init__(
        self,
        reader: Reader,
        open_run: Callable[[str], Target],
        wants: Callable[[str], bool],
        page: str | None = None,
    ) -> None:
        """Prepare the export. `page`: URL of the dashboard, or None without a dashboard."""
        self._reader = reader
        self._page = page
        self._standing: dict[str, tuple[object, ...]] = {}  # as it was said last
        self._open_run = open_run
        self._wants = wants
        self._targets: dict[str, Target] = {}
        self._done: dict[str, int | None] = {}  # newest step of a run that was over when it was pushed

    def tick(self, now: datetime) -> int:
        """Push the settled steps and return their number. Raises errors of the source and of the target."""
        return sum(self._follow(run) for run in self._due(runs_of(queries.app_runs(self._reader), now), now))

    def _due(self, runs: Iterable[Run], now: datetime) -> list[Run]:
        recent = [run for run in runs if run.last_record is not None and now - run.last_record < _OLD]
        return [run for run in recent if self._wants(run.name) and self._done.get(run.name, -1) != run.last_step]

    def _follow(self, run: Run) -> int:
        over = run.liveness.state in _OVER
        up_to = run.last_step if over or run.last_step is None else run.last_step - SETTLE_STEPS
        if run.name not in self._targets:
            self._targets[run.name] = self._open_run(run.name)
        logged = push(self._reader, run.name, self._targets[run.name], up_to=up_to)
        self._say(run)
        if over and not run.judgement.behind:  # the last word about it is said
            self._targets.pop(run.name).close()
            self._standing.pop(run.name, None)
            self._done[run.name] = run.last_step
        return logged

    def _say(self, run: Run) -> None:
        """Push the run's severity and verdict after its first diagnosis, if either has changed."""
        stands = standing(run.judgement, run.name, self._page)
        diagnosed = stands.verdict is not None or stands.severity != "unknown"
        if diagnosed and self._standing.get(run.name) != stands.essence:
            self._targets[run.name].stand(stands)
            self._standing[run.name] = stands.essence

    def close(self) -> None:
        """End all targets."""
        for target in self._targets.values():
            target.close()


def follow(home: Home, settings: Logger, stop: threading.Event, page: str | None = None) -> None:
    """Push metrics until `stop` is set. `page`: URL of the dashboard. Raises the target's errors."""
    with connect(home.path) as reader:
        following = Following(reader, lambda run: open_target(settings, run, home), settings.wants, page)
        try:
            while not stop.is_set():
                with suppress(ServiceUnavailableError):  # it is being started again
                    following.tick(datetime.now(UTC))
                stop.wait(_SECONDS)
        finally:
            following.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m logprobe.app.processes.logger", description="Pushes metrics of a home."
    )
    parser.add_argument("--home", required=True)
    parser.add_argument("--number", type=int, required=True, help="of the entry of `loggers`, from 0")
    parser.add_argument("--page", metavar="URL", help="URL of the dashboard, for links")
    arguments = parser.parse_args(argv)
    home = Home(arguments.home)
    try:
        with stop_on_signals() as stop:
            follow(home, _entry(home, arguments.number), stop, arguments.page)
    except LogprobeError as error:
        complain(str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process, around other people's packages
        complain(f"export of metrics failed ({type(error).__name__}: {error}); check the target in `loggers`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
