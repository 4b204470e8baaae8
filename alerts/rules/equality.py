"""Level of an alert according to the certificate of bit equality of a run. Pure.

| certificate | level |
|---|---|
| broken | warning |
| zero | quiet |
| different, not measured | not measured: nothing changes |
"""

from __future__ import annotations

from typing import Final

from logprobe.alerts.rules.alert import WARNING, Seen
from logprobe.monitor.judging.bit_equality import Certificate

_FIX: Final = (
    "compare kernels, batch settings and weights of both sides at that step with what they were before; a correction "
    "restores what the equality gave until then"
)


def look(certificate: Certificate) -> Seen:
    """Return the level and description of a certificate."""
    if certificate.verdict == "broken":
        words = f"bit equality is broken: {certificate.reason}"
        return Seen(WARNING, words, since_step=certificate.since_step, fix=_FIX)
    return Seen(0 if certificate.verdict == "zero" else None, f"bit equality is {certificate.words}")
