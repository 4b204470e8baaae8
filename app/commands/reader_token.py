"""`logprobe reader-token`: who may list and compare which runs from other machines, at this home's
service."""

from __future__ import annotations

import argparse

from logprobe.app.commands import relay_token


def run(arguments: argparse.Namespace) -> int:
    """As `relay-token` does with its tokens."""
    return relay_token.change(arguments, lambda place: place.readers)
