"""Identity, queue and thread of a `Recorder`, created again in a forked child and closed in order at exit."""

from __future__ import annotations

import atexit
import math
import os
import platform
import re
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import util as multiprocessing_util
from typing import Final

from logprobe.collectors.addresses import address_of, default_home, folder_of, is_address
from logprobe.collectors.environment import option, unknown
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.health import Guard, RecorderHealth
from logprobe.collectors.plain_text import complain
from logprobe.collectors.recorder.call_queue import AtWork, CallQueue
from logprobe.collectors.recorder.capture import Captured
from logprobe.collectors.recorder.settings import Settings
from logprobe.collectors.recorder.writer import Writer
from logprobe.collectors.shipping.autostart import ShipperAutostart
from logprobe.collectors.spool.segments import SpoolWriter

EXIT_SECONDS: Final = 5.0  # a host that wants to end is held up by at most this
_FORK_SECONDS: Final = 2.0  # a thread that computes for longer is cut in two, as it always was
# Segments that closing may have to write at its end, one of each kind and some that were under way.
_LAST_WRITES: Final = 8
_HOST: Final = re.compile(r"[^A-Za-z0-9_]+")
_KEEP_FREE: Final = 1 << 30  # bytes of the disk that stay free while records wait for a bucket
_WATCHED_VERSIONS: Final = ("numpy", "pyarrow", "torch", "vllm", "transformers")
_LIVE: Final[weakref.WeakSet[Runtime]] = weakref.WeakSet()
_said: Final[list[int]] = []  # sockets, held while the process lives; the kernel lets go of them at its end
_stopped: Final[list[AtWork]] = []  # while the process forks
_exit_deadlines: Final[dict[int, float]] = {}  # by process id: a forked child has an exit of its own


class Runtime:
    """Queue, thread and counters of one recorder in one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reset()
        _LIVE.add(self)

    def _reset(self) -> None:
        settings = self._settings
        self.writer_id = new_writer_id(settings.component)
        self.call_queue = CallQueue(settings.queue_bytes)
        folder = settings.folder
        self._writer = Writer(
            settings,
            self.call_queue,
            SpoolWriter(
                folder,
                settings.run,
                self.writer_id,
                at_the_disk=self.call_queue.at_work.interrupted,
                keep_free=0 if address_of(folder) is None else _KEEP_FREE,
            ),
            snapshot=self.snapshot,
            shipper=ShipperAutostart(folder, self.call_queue.health),
            began=partial(announce, settings),
        )
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.documents: set[tuple[str, str]] = set()  # kind and fingerprint of those that this process has recorded

    def after_fork(self) -> None:
        """Reset in a child process to a new writer with an empty queue and fresh locks. The thread starts on first use.

        The parent's queue stays referenced, because pinned memory cannot be freed in a child.
        """
        self._inherited = self.call_queue
        self._reset()

    def start(self) -> None:
        """Start the thread unless it is running."""
        with self._starting:
            if self._thread is not None:
                return
            details = host_description(self._settings)
            self.call_queue.health.report("started", "recorder started", severity="info", details=details)
            if words := unknown():
                self.call_queue.health.report("unknown_variable", "; ".join(words))
            interval = self._settings.flush_interval
            thread = threading.Thread(target=self._writer.run, args=(interval,), name="logprobe", daemon=True)
            thread.start()  # fails when the interpreter is about to end
            self._thread = thread

    def guard(self, call: str, step: object = None) -> Guard:
        """Return the context of one call from the host."""
        return Guard(self.call_queue.health, call, step)

    def offer(self, item: Captured) -> bool:
        """Append a call to the queue."""
        if self._thread is None:
            self.start()
        return self.call_queue.offer(item)

    def flush(self, timeout: float) -> bool:
        """Implement `Recorder.flush`."""
        if self._thread is None:
            return True
        if self.call_queue.closing:
            return self._wait_closed(timeout) and self.call_queue.closed_ok
        request = self.call_queue.request_flush()
        deadline = time.monotonic() + timeout
        while not request.done.wait(min(0.1, max(deadline - time.monotonic(), 0))):
            if time.monotonic() >= deadline or self.call_queue.closed:
                break
        return request.ok

    def close(self, timeout: float, *, final: bool = False) -> bool:
        """Implement `Recorder.close`. `final`: true if the process ends after `timeout` seconds."""
        self.call_queue.close(ends=time.monotonic() + timeout - self._last_words(timeout) if final else math.inf)
        return self._wait_closed(timeout) and (self.call_queue.closed_ok or self._thread is None)

    def _last_words(self, timeout: float) -> float:
        """Return the seconds of a last wait that are reserved for recording losses."""
        return min(timeout / 2, max(timeout / 10, _LAST_WRITES * self._writer.outbox.slowest))

    def host_failed(self, error: str) -> None:
        """Report that the host failed. An orderly close alone would make its run look finished."""
        self.call_queue.health.report("host_failed", f"the recording process ended with {error}", severity="error")

    def abandon(self) -> None:
        """Let the thread write the queue and end, without waiting, after garbage collection of the recorder."""
        self.call_queue.close()

    def _wait_closed(self, timeout: float) -> bool:
        if self._thread is None:  # a forked child that recorded nothing
            return True
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return self.call_queue.closed

    def snapshot(self) -> RecorderHealth:
        """Implement `Recorder.health`."""
        call_queue, writer, outbox = self.call_queue, self._writer, self._writer.outbox
        return {
            "component": self._settings.component,
            "run": self._settings.run,
            "writer": self.writer_id,
            "accepted": {"calls": call_queue.accepted_calls, "sequences": call_queue.accepted_sequences},
            "written": {
                "segments": outbox.segments,
                "rows": outbox.rows,
                "bytes": outbox.spool.nbytes,
                "sequences": writer.sequences_written,
                "tokens": writer.tokens_written,
                "last": outbox.spool.number,  # of these segments
            },
            "reduced": {"sequences": writer.sequences_reduced, "tokens": writer.tokens_reduced},
            **call_queue.health.counts(),
            "queue": {
                "calls": call_queue.waiting,
                "bytes": call_queue.ring.in_use,
                "limit_bytes": call_queue.ring.limit,
            },
            "disk": outbox.refusal or "ok",
            "cost": {
                "calls": call_queue.health.calls,
                "caller_seconds": call_queue.health.caller_seconds,
                "thread_seconds": writer.thread_seconds,
            },
        }


def announce(settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
    """Print the run and its destination once per process group, on rank 0. Ignore failures."""
    if settings.rank or option("quiet", environment) is not None:
        return
    with suppress(OSError, ValueError, AttributeError):  # said by another one; stderr is closed, or None
        _claim(f"{settings.home}\0{settings.run}")
        view = "" if is_address(settings.home) else f"; view: logprobe up{_option(settings, environment)}"
        complain(f"recording run {settings.run} to {settings.home}{view}")


def _claim(what: str) -> None:
    """Claim the announcement among all processes of this group. Raises `OSError` if one of them has claimed it."""
    name = sha256(f"{os.getuid()}\0{os.getpgrp()}\0{what}".encode(errors="replace")).hexdigest()
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0logprobe-{name}")  # abstract: it leaves no file
    except OSError:
        claim.close()
        raise
    _said.append(claim.detach())  # a number: nothing closes it before the process ends


def _option(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return ``--home DIR``, or "" if the command finds the data directory by default."""
    with suppress(ConfigurationError):
        if settings.home == str(folder_of(default_home(environment), environment)):
            return ""
    return f" --home {settings.home}"


def new_writer_id(component: str) -> str:
    """Return a new name in the spool that no other writer uses."""
    host = _HOST.sub("_", socket.gethostname())[:60] or "host"
    return f"{component}-{host}-{os.getpid()}-{secrets.token_hex(4)}"


def host_description(settings: Settings) -> dict[str, object]:
    """Describe the process for the `started` record."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "rank": settings.rank,
        "replica": settings.replica,
        "flush_interval": settings.flush_interval,
        "raw_fraction": settings.raw_fraction,
        "worst_sequences": settings.worst_sequences,
        "argv0": sys.argv[0] if getattr(sys, "argv", None) else "",
        "python": platform.python_version(),
        "versions": {"logprobe": own_version(), **_loaded_versions()},
    }


def _loaded_versions() -> dict[str, str]:
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in _WATCHED_VERSIONS}
    return {name: str(version_) for name, version_ in versions.items() if version_ is not None}


@cache
def own_version() -> str | None:
    """Return the version of the installed package, or None for a checkout that is not installed."""
    # In the host's thread, never in ours: this imports modules, and a child forked in the middle of an import is left
    # with half a module for ever.
    try:
        return version("logprobe")
    except PackageNotFoundError:
        return None


def close_all() -> None:
    """Close every recorder of this process within `EXIT_SECONDS` of the first call."""
    deadline = _exit_deadlines.setdefault(os.getpid(), time.monotonic() + EXIT_SECONDS)
    error = _uncaught()
    for runtime in list(_LIVE):
        with Guard(runtime.call_queue.health, "close", cost=False):
            if error is not None and not runtime.call_queue.closing:
                runtime.host_failed(error)
            runtime.close(max(deadline - time.monotonic(), 0.0), final=True)


def _uncaught() -> str | None:
    """Return the error that ends this interpreter, or None if none does."""
    if hasattr(sys, "ps1") or "IPython" in sys.modules:  # there it may be any earlier one
        return None
    error: type[BaseException] | None = getattr(sys, "last_type", None)
    return None if error is None else error.__name__


def _before_fork() -> None:
    deadline = time.monotonic() + _FORK_SECONDS
    for runtime in list(_LIVE):
        at_work = runtime.call_queue.at_work
        if at_work.stop(max(deadline - time.monotonic(), 0.0)):
            _stopped.append(at_work)


def _after_fork_in_parent() -> None:
    while _stopped:
        _stopped.pop().go_on()


def _after_fork_in_child() -> None:
    _stopped.clear()
    for runtime in list(_LIVE):
        runtime.after_fork()


def _finalize_in_process(_: object) -> None:
    multiprocessing_util.Finalize(None, close_all, exitpriority=0)


atexit.register(close_all)
# A process of multiprocessing (a vLLM engine core, a data worker) ends without atexit, but runs its finalizers. It
# forgets those from before its start, from its parent or from unpickling its arguments; the hook is called after that.
_finalize_in_process(None)
multiprocessing_util.register_after_fork(_LIVE, _finalize_in_process)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
