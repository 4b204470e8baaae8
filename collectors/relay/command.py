"""The relay's command line. Needs nothing but what collectors need."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.plain_text import complain, log_to_stderr
from logprobe.collectors.relay.arguments import SERVICE_VARIABLE, declare, service
from logprobe.collectors.relay.connection import Target
from logprobe.collectors.relay.relay import Options, Relay, default_runs

_NICE: Final = 5


def options(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Options:
    """What was asked for. Raises `ConfigurationError`."""
    home = arguments.home or environment.get("LOGPROBE_HOME")
    if not home:
        raise ConfigurationError("no home: pass --home DIR or set LOGPROBE_HOME")
    said = service(environment, arguments.to)
    if not said.address:
        raise ConfigurationError(f"no service: pass --to grpc+tls://HOST:PORT or set {SERVICE_VARIABLE}")
    token, ca = arguments.token or said.token, arguments.ca or said.ca
    if not token:
        raise ConfigurationError(
            f"pass --token FILE, or write ,token=FILE in {SERVICE_VARIABLE}; `logprobe relay-token` on the service "
            "makes one"
        )
    target = Target(said.address, Path(token).expanduser(), Path(ca).expanduser() if ca else None)
    return Options(
        home=Path(home).expanduser().absolute(),
        target=target,
        rate=arguments.limit,
        drain=arguments.drain,
        tethered=arguments.with_collectors,
        runs=default_runs(),
        node=said.node,
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs a relay until it is done or asked to end; returns the exit code. Raises `LogprobeError`."""
    stop = threading.Event()
    relay = Relay(options(arguments), stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not set here: the handler may run in the middle of a wait on the same lock.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    if arguments.with_collectors:
        os.nice(_NICE)  # the trainer beside it comes first
    relay.run()
    if arguments.drain and relay.unread is not None:
        complain(f"{relay.unread}; what is there was not sent")
        return 1
    if arguments.drain and relay.left:
        complain(f"{relay.left} segments were not acknowledged; they stay in the spool")
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m logprobe.collectors.relay", description="The relay of a node.")
    parser.add_argument("--home", metavar="DIR", help="whose spool is sent (default: $LOGPROBE_HOME)")
    declare(parser)
    log_to_stderr()
    try:
        return run(parser.parse_args(argv))
    except LogprobeError as error:
        complain(str(error))
        return 1
