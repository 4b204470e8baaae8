"""The power goes: recorders and a service on a disk that keeps only what was fsynced; what `flush` acknowledged is still there."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final

from chaos.remote_disk import mounted, survivors
from chaos.torment import Outcome, Torment

_LONGEST_SECONDS: Final = 6.0


def cut(folder: Path, seed: int) -> Outcome:
    """One power cut at a random moment; → what is found afterwards."""
    started = time.monotonic()
    torment = Torment("kills", seed, folder)
    backing, journal = folder / "backing", folder / "journal"
    with mounted(backing, folder / "disk", "--journal", str(journal)), torment.running():
        torment.wait_for_acknowledgement()
        time.sleep(random.Random(seed).uniform(0.0, _LONGEST_SECONDS))
    root = torment.home.relative_to(folder / "disk")
    survivors(backing, journal, folder / "after")
    torment.home = folder / "after" / root
    torment.reckon()
    torment.outcome.scenario, torment.outcome.seconds = "power cut", round(time.monotonic() - started, 1)
    return torment.outcome
