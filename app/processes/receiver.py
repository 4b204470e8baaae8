"""The process that relays connect to with TLS.

    python -m logprobe.app.processes.receiver --home DIR --address ADDRESS --port PORT

`logprobe up --relay-port` starts it, and starts it again when it dies.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.plain_text import complain, log_to_stderr
from logprobe.monitor.home import Home, apply_umask
from logprobe.monitor.relay.receiver import Receiver, Settings, handshakes_counted


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. One line of JSON on stdout says the port."""
    parser = argparse.ArgumentParser(
        prog="python -m logprobe.app.processes.receiver", description="Listens for relays, with TLS."
    )
    parser.add_argument("--home", required=True)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args(argv)
    log_to_stderr()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not set here: the handler may run in the middle of a wait on the same lock.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    try:
        apply_umask()
        settings = Settings(Home(arguments.home).create(), arguments.address, arguments.port)
        receiver = Receiver(settings, stop, _say)
        with handshakes_counted(receiver.refused_connection):
            receiver.run()
    except LogprobeError as error:
        complain(str(error))
        return 1
    return 0


def _say(port: int) -> None:
    print(json.dumps({"port": port}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
