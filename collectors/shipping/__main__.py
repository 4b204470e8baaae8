"""``python -m logprobe.collectors.shipping ADDRESS``: shipper that collectors start. Users run `logprobe ship`."""

from __future__ import annotations

import sys

from logprobe.collectors.shipping.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
