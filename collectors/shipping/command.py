"""The shipper's command line. Needs nothing but what collectors need, and the package that speaks to buckets."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from logprobe.collectors import addresses
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.plain_text import complain
from logprobe.collectors.shipping.shipper import Options, Shipper

_NICE: Final = 5


def run(home: str | None, seconds: float | None) -> int:
    """Ship what waits on this machine for an address; return 0 once nothing waits, and 1 if something is left.

    Args:
        home: the address; None: ``LOGPROBE_HOME``.
        seconds: after which it gives up; None: only when credentials are refused.

    Raises `LogprobeError`.
    """
    stop = threading.Event()
    timer = None if seconds is None else threading.Timer(seconds, stop.set)
    if timer is not None:
        timer.daemon = True
        timer.start()
    shipper = _shipper(home, stop, Options(drain=True))
    left = _work(shipper, stop)
    if timer is not None:
        timer.cancel()
    waiting = len(shipper.queue.waiting())
    complain(f"{shipper.sent:,} segments shipped, {waiting:,} left")
    return 1 if left or waiting or shipper.unread else 0


def _work(shipper: Shipper, stop: threading.Event) -> bool:
    """Run a shipper until it is done or asked to end; return whether it gave up."""
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


def _shipper(home: str | None, stop: threading.Event, options: Options) -> Shipper:
    """Raises `ConfigurationError`."""
    home = home or os.environ.get("LOGPROBE_HOME")
    folder = Path() if not home else addresses.folder_of(home)
    address = addresses.address_of(folder)
    if address is None:
        raise ConfigurationError(
            f"{home or 'no home'}: nothing to ship; name the address of a bucket with --home or LOGPROBE_HOME, such as "
            "s3://BUCKET/FOLDER"
        )
    from logprobe.collectors.shipping.bucket import Bucket, BucketPlace  # noqa: PLC0415 - optional, and heavy

    return Shipper(folder, BucketPlace(Bucket(address)), stop, options)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m logprobe.collectors.shipping", description="Ship what this machine records to a bucket."
    )
    parser.add_argument("--home", metavar="ADDRESS", help="the bucket (default: $LOGPROBE_HOME)")
    parser.add_argument(
        "--with-collectors", action="store_true", help="end when no collector uses this address and nothing waits"
    )
    parser.add_argument(
        "--seconds", metavar="N", type=float, help="give up after so long (default: only when credentials are refused)"
    )
    log_to_stderr()
    arguments = parser.parse_args(argv)
    try:
        if not arguments.with_collectors:
            return run(arguments.home, arguments.seconds)
        os.nice(_NICE)  # the trainer beside it comes first
        stop, named = threading.Event(), os.environ.get("LOGPROBE_RUN")
        options = Options(tethered=True, runs=frozenset({named} if named else ()))
        return 1 if _work(_shipper(arguments.home, stop, options), stop) else 0
    except LogprobeError as error:
        complain(str(error))
        return 1
