"""`logprobe doctor`: what is installed, which hooks are live here, what cannot be measured and why."""

from __future__ import annotations

from logprobe.app import doctor
from logprobe.app.surface.arguments import Arguments
from logprobe.app.text import tables


def run(arguments: Arguments) -> int:
    """Print findings; needs no extras, and no home. Whatever it finds, it has done its work: the exit code is 0."""
    findings = doctor.examine(arguments.home)
    documents = [finding.document() for finding in findings]
    tables.show(documents, lambda: doctor.words(findings), as_json=arguments.json)
    return 0
