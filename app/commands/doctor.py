"""`logprobe doctor`: report installed frameworks, active hooks, and the reasons for missing measurements."""

from __future__ import annotations

from logprobe.app import doctor
from logprobe.app.surface.arguments import Arguments
from logprobe.app.text import tables


def run(arguments: Arguments) -> int:
    """Print the findings. Requires no extras and no data directory. The exit code is 0 for any findings."""
    findings = doctor.examine(arguments.home)
    documents = [finding.document() for finding in findings]
    tables.show(documents, lambda: doctor.words(findings), as_json=arguments.json)
    return 0
