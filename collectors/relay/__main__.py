"""``python -m logprobe.collectors.relay``: the relay as a process; `logprobe relay` is the same with all extras
installed."""

from __future__ import annotations

import sys

from logprobe.collectors.relay.command import main

if __name__ == "__main__":
    sys.exit(main())
