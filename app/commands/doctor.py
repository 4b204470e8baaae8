"""`logprobe doctor`: what is installed, which hooks are live here, what cannot be measured and why."""

from __future__ import annotations

import argparse
import sys

from logprobe.app import doctor
from logprobe.app.text import tables


def run(arguments: argparse.Namespace) -> int:
    """Prints findings; needs no extras, and no home. Whatever it finds, it has done its work: the exit code is 0."""
    findings = doctor.examine(arguments.home)
    if arguments.json:
        print(tables.dump([finding.document() for finding in findings]))
    else:
        sys.stdout.write(doctor.words(findings))
    return 0
