"""Shipper as a process. It requires only the packages of collectors and the object store package."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from logprobe.collectors import addresses
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.plain_text import complain
from logprobe.collectors.shipping.shipper import Shipper

_NICE: Final = 5


def run(home: str | None, seconds: float | None) -> int:
    """Ship the segments waiting on this machine for an address. Return 0 once none waits, and 1 if some are left.

    Args:
        home: address, or None for ``LOGPROBE_HOME``.
        seconds: time limit, or None to give up only if credentials are refused.

    Raises `LogprobeError`.
    """
    stop = threading.Event()
    timer = None if seconds is None else threading.Timer(seconds, stop.set)
    if timer is not None:
        timer.daemon = True
        timer.start()
    shipper = _shipper(home, stop, drain=True)
    left = _work(shipper, stop)
    if timer is not None:
        timer.cancel()
    waiting = len(shipper.queue.waiting())
    complain(f"{shipper.sent:,} segments shipped, {waiting:,} left")
    return 1 if left or waiting or shipper.queue.unread else 0


def _work(shipper: Shipper, stop: threading.Event) -> bool:
    """Run a shipper until it is done or stopped. Return whether it gave up."""
    with suppress(ValueError):  # not the main thread: a test, whose signals are its own
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not set here: the handler may run in the middle of a wait on the same lock.
            signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    try:
        shipper.run()
    except PermissionError as error:
        complain(str(error))
        return True
    return False


def _shipper(home: str | None, stop: threading.Event, **options: Any) -> Shipper:
    """Return a shipper of `home` with the `options` of `Shipper`. Raise `ConfigurationError`."""
    home = home or os.environ.get("LOGPROBE_HOME")
    folder = Path() if not home else addresses.folder_of(home)
    address = addresses.address_of(folder)
    if address is None:
        raise ConfigurationError(
            f"{home or 'no data directory'}: nothing to ship; set --home or LOGPROBE_HOME to the address of a bucket, such as "
            "s3://BUCKET/FOLDER"
        )
    from logprobe.collectors.shipping.bucket import Bucket, BucketPlace  # noqa: PLC0415 - optional, and heavy

    return Shipper(folder, BucketPlace(Bucket(address)), stop, **options)


def main(address: str) -> int:
    """Ship for the collectors of this machine until none is left and no segment waits. Return the exit code.

    A collector starts this process.
    """
    log_to_stderr()
    os.nice(_NICE)  # the trainer beside it comes first
    stop, named = threading.Event(), os.environ.get("LOGPROBE_RUN")
    try:
        shipper = _shipper(address, stop, tethered=True, runs=frozenset({named} if named else ()))
        return 1 if _work(shipper, stop) else 0
    except LogprobeError as error:
        complain(str(error))
        return 1
