"""``python -m logprobe.collectors.shipping ADDRESS``: the shipper that collectors start. People use `logprobe ship`."""

from __future__ import annotations

import sys

from logprobe.collectors.shipping.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
