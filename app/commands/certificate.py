"""`logprobe certificate`: make or renew what the service shows to relays."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from logprobe.app.parsers.arguments import home_path
from logprobe.monitor.home import Home
from logprobe.monitor.relay import certificate
from logprobe.monitor.relay.files import RelayFiles


def run(arguments: argparse.Namespace) -> int:
    """Prints the file that nodes have to trust, alone on its line."""
    place = RelayFiles.of(Home(home_path(arguments)).create())
    certificate.make(place, arguments.host or [], arguments.days, datetime.now(UTC))
    print(place.authority)
    return 0
