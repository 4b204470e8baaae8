"""`CorrectionSwitch`: query of the correction that applies to a trainer at each step boundary.

    switch = CorrectionSwitch()                      # LOGPROBE_HOME, LOGPROBE_RUN
    config = switch.current(step)                    # microseconds; None: no correction
    if config is not None:
        correction = correct(config, rollout_logprobs, old_logprobs, mask)
        ...                                          # loss × correction.weights, over correction.mask
    recorder.step(step, ..., correction=correction)  # this is the acknowledgement, with what was measured

A daemon thread reads the directives from the file in the data directory. For a bucket, a shipper keeps that file up to
date. `current` only returns the thread's last result. If the file cannot be read, the last valid directive stays in
effect.

Directives begin at a future step, so that all ranks change together. If ranks may be further apart than the directive's
notice, one rank should query and broadcast the result.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from logprobe.collectors.addresses import address_of
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives, directive_key
from logprobe.collectors.errors import ConfigurationError, DirectiveError
from logprobe.collectors.health import LOGGER, Counts, Guard, Health
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.shipping.autostart import ShipperAutostart
from logprobe.collectors.spool.segments import run_dir
from logprobe.collectors.versions import home_and_run

POLL_SECONDS: Final = 0.5  # a kill switch in a shared folder is known within a second
_FIRST_SECONDS: Final = 2.0  # a hanging file system must not hold up the start of a trainer for longer
_NO_STEP: Final = (
    TypeError,
    ValueError,
    ArithmeticError,
    RuntimeError,
)  # comparing a thing with a step; tensors raise the last


class CorrectionSwitch:
    """Current correction of one run. The switch is safe to share between threads, to fork and to pickle.

    Args:
        home: data directory, by default ``LOGPROBE_HOME``. It is on a file system shared with the service, or on a node
            of a Ray cluster. Alternatively it is the address of a bucket, ``s3://bucket/team``.
        run: name of the run, by default ``LOGPROBE_RUN``.
        recorder: recorder of problems as `health` records, or None to only log and count them.
        poll_seconds: interval between two reads of the thread.

    Raises:
        ConfigurationError: data directory or run is missing, the signing key is unusable, or an address is wrong.
    """

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        run: str | None = None,
        *,
        recorder: Recorder | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        if not poll_seconds > 0:
            raise ConfigurationError(f"poll_seconds={poll_seconds!r} is not above 0; use a positive number")
        self._arguments = (home, run, poll_seconds)
        problems = _Problems(recorder)
        folder, self._run = home_and_run(home, run)
        self._watch = _Watch(folder, self._run, poll_seconds, problems)
        weakref.finalize(self, self._watch.stop).atexit = False
        self._watch.start()
        if self._watch.unusable is not None:
            self._watch.stop()
            raise self._watch.unusable

    def current(self, step: int) -> CorrectionConfig | None:
        """Return the correction to apply in `step`, or None if there is none. Never raise and never wait."""
        watch = self._watch
        if watch.pid != os.getpid():  # the thread did not survive a fork
            watch.start()
        try:
            entry = watch.directives.at(step) if step == step else None  # noqa: PLR0124 - NaN is no step
        except _NO_STEP:
            kind = type(step).__name__
            watch.problems.count("bad_step", f"CorrectionSwitch.current: a {kind} is not a step; no correction applies")
            return None
        return None if entry is None else entry.config

    @property
    def version(self) -> int:
        """Version of the newest directive, or 0."""
        return self._watch.directives.version

    @property
    def health(self) -> Counts:
        """Counts of problems by name, and the last message."""
        return self._watch.problems.health.counts()

    def close(self) -> None:
        """End the thread. The last directives stay in effect."""
        self._watch.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        home, run, poll_seconds = self._arguments
        return _recreate, (home, run, poll_seconds)

    def __repr__(self) -> str:
        return f"CorrectionSwitch(run={self._run!r}, version={self.version})"


def _recreate(home: Any, run: str | None, poll_seconds: float) -> CorrectionSwitch:
    return CorrectionSwitch(home, run, poll_seconds=poll_seconds)


class _Watch:
    """Thread of a switch and the directives that it has read.

    It holds no reference to the switch, so that an unused switch ends it. Only this thread reads, because a file
    system may hang. For a bucket it reads the file in the local folder, which the shipper keeps up to date.
    """

    def __init__(self, home: Path, run: str, poll_seconds: float, problems: _Problems) -> None:
        self.directives = Directives(run)
        self.problems = problems
        self.unusable: ConfigurationError | None = None  # what the first look found wrong with the arguments
        self.pid = -1
        self._home = home
        self._shipper = ShipperAutostart(home, problems.health)
        self._followed = None if address_of(home) is None else run_dir(home, run)  # a shipper follows runs that it sees
        self._file = DirectiveFile(home, run)
        self._key: bytes | None = None
        self._poll_seconds = poll_seconds
        self._looked = self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread. On the first start, wait at most `_FIRST_SECONDS` for the first read."""
        first = self.pid == -1
        self.pid = os.getpid()
        self._looked, self._stopping = threading.Event(), threading.Event()  # a fork may have copied them locked
        try:
            threading.Thread(target=self._run, name="logprobe-switch", daemon=True).start()
        except RuntimeError as error:  # no threads left, or the interpreter is ending
            self.problems.count(
                "switch_not_started", f"directives cannot be polled: {error}; the last ones stay active"
            )
            return
        if first:
            self._looked.wait(_FIRST_SECONDS)

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        pid = os.getpid()
        while not self._stopping.is_set() and pid == self.pid:
            with Guard(self.problems.health, "switch", cost=False):  # whatever stands there, the next look must come
                self._look()
            self._looked.set()
            self._stopping.wait(self._poll_seconds)
        with Guard(self.problems.health, "switch", cost=False):
            self._shipper.leave()

    def _look(self) -> None:
        try:
            directives = self._read()
        except (DirectiveError, ConfigurationError) as error:
            if isinstance(error, ConfigurationError) and not self._looked.is_set():
                self.unusable = error
            self.problems.count("directive_refused", str(error))
        except OSError as error:
            self.problems.count(
                "directive_unreachable", f"directives cannot be read ({error}); the last ones stay active"
            )
        else:
            self._take(directives)

    def _read(self) -> Directives:
        if self._followed is not None:
            self._followed.mkdir(parents=True, exist_ok=True)
        self._shipper.check()
        # The key is looked up each time: it may be set, or changed, after the trainer has started. One that is gone
        # still counts: who can remove a file must not be able to make unsigned directives count.
        self._key = directive_key(self._home) or self._key
        return self._file.read(self._key)

    def _take(self, directives: Directives) -> None:
        if directives.stopped:
            self.directives = replace(self.directives, stopped=True)
        elif directives.version < self.directives.version:  # an old copy, whoever put it there
            self.problems.count(
                "directive_refused",
                f"directives went back from version {self.directives.version} to {directives.version}; the newer ones "
                "stay active",
            )
        else:
            self.directives = directives


class _Problems:
    """Counts of problems, which are reported to a recorder if there is one. Each name is logged once."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.health = Health()
        self._recorder = recorder
        self._logged: set[str] = set()

    def count(self, event: str, message: str) -> None:
        self.health.report(event, message)
        if self._recorder is not None:
            self._recorder.report(event, message, severity="warning", component="switch")
        elif event not in self._logged:
            self._logged.add(event)
            LOGGER.warning("%s", message)
