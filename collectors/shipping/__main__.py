"""``python -m logprobe.collectors.shipping``: the shipper as a process; `logprobe ship` is the same with all extras
installed."""

from __future__ import annotations

import sys

from logprobe.collectors.shipping.command import main

if __name__ == "__main__":
    sys.exit(main())
