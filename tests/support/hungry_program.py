"""A process that keeps asking a service for what takes too long, each of many readers by a connection of its own."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from processes import ENDLESS

from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.reader import connect


def main(home: Path, readers: int) -> None:
    """Until it is killed. Says `refused` when a queue was full for the first time."""
    refused = threading.Event()

    def ask() -> None:
        with connect(home) as reader:
            while True:
                try:
                    reader.query(ENDLESS)
                except LogprobeError as error:
                    if "are waiting already" in str(error):
                        refused.set()
                    time.sleep(0.5)

    for _ in range(readers):
        threading.Thread(target=ask, daemon=True).start()
    refused.wait()
    print("refused", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
