"""`logprobe doctor`: what is installed, which hooks are live here, what cannot be measured and why."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Prints findings; needs no extras, and no home. Whatever it finds, it has done its work: the exit code is 0."""
    import json

    from logprobe.app import doctor

    findings = doctor.examine(arguments.home)
    if arguments.json:
        print(json.dumps([finding.document() for finding in findings], ensure_ascii=False))
    else:
        sys.stdout.write(doctor.words(findings))
    return 0
