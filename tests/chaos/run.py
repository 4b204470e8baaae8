"""`make campaign NAME=chaos`: every scenario, one after the other, and a table of what became of them. Exit code 1 when a promise was broken.

python tests/chaos/run.py [--kills 320] [--minutes 18] [--seed N] [--scenario NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from chaos import power
from chaos.torment import SCENARIOS, Torment, document

KILLS: Final = 320
CUTS: Final = 6
_RECKONED: Final = ("acknowledged", "lost", "doubled", "damaged", "broken")
MINUTES: Final = 15.0  # of kills; power cuts take some two more
_COLUMNS: Final = (
    "scenario", "seed", "recorder_kills", "service_kills", "faults", "full_disks", "acknowledged", "stored", "under_fire", "lost", "doubled",
    "damaged", "quarantined", "left_over", "seconds",
)  # fmt: skip


def main() -> int:
    """Runs what was asked for; → exit code."""
    arguments = _arguments()
    if arguments.alone and arguments.power:
        print(document(power.cut(Path(arguments.alone), arguments.seed)), flush=True)
        return 0
    if arguments.alone:
        deadline = time.monotonic() + 60.0 * arguments.minutes
        torment = Torment(arguments.scenario[0], arguments.seed, Path(arguments.alone))
        print(document(torment.run(arguments.kills, until=deadline)), flush=True)
        return 0
    names = arguments.scenario or list(SCENARIOS)
    print(
        f"chaos: seed {arguments.seed}; again with: make campaign NAME=chaos ARGS='--seed {arguments.seed}'", flush=True
    )
    begun, kills = time.monotonic(), 0
    outcomes = []
    for number, name in enumerate(names):
        left = len(names) - number  # what one scenario had no time for, the others make up for
        minutes = (arguments.minutes - (time.monotonic() - begun) / 60) / left
        outcomes.append(_one(name, arguments.seed, -(-(arguments.kills - kills) // left), minutes))
        kills += outcomes[-1]["recorder_kills"] + outcomes[-1]["service_kills"]
    if not arguments.scenario:
        outcomes += [_power_cut(arguments.seed + number) for number in range(CUTS)]
    _print(outcomes)
    good = all(each["good"] for each in outcomes)
    # Otherwise nothing was shown: the machine was too slow, or too few were killed.
    idle = [each["scenario"] for each in outcomes if each["scenario"] in SCENARIOS and not each["under_fire"]]
    if kills < arguments.kills:
        print(f"only {kills} of {arguments.kills} kills: the time was over; --minutes gives more")
    if idle:
        print(f"the service took in nothing between its kills, so too little was tried: {', '.join(idle)}")
    print(f"{kills} kills: {'nothing lost, nothing doubled' if good else 'BROKEN'}")
    return 0 if good and kills >= arguments.kills and not idle else 1


def _one(name: str, seed: int, kills: int, minutes: float) -> dict[str, Any]:
    """One scenario in a process of its own: it has a fork server, and perhaps a disk, of its own."""
    print(f"{name}: {SCENARIOS[name].words} …", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        (Path(folder) / "disk").mkdir()
        command = [
            sys.executable, __file__, "--alone", folder, "--scenario", name, "--seed", str(seed),
            "--kills", str(kills), "--minutes", str(minutes),
        ]  # fmt: skip
        return _outcome(_on_its_disk(command, folder, SCENARIOS[name].megabytes), name)


def _power_cut(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        return _outcome([sys.executable, __file__, "--alone", folder, "--power", "--seed", str(seed)], "power cut")


def _outcome(command: list[str], name: str) -> dict[str, Any]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: ended with {done.returncode}")
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def _on_its_disk(command: list[str], folder: str, megabytes: int | None) -> list[str]:
    """With a file system of that size at ``disk``: a real one, in a mount namespace that ends with the process."""
    if megabytes is None:
        return command
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && exec "$@"'
    return [*namespace, "sh", "-c", mount, f"{folder}/disk", *command]


def _print(outcomes: list[dict[str, Any]]) -> None:
    head = [name.replace("_", " ") for name in _COLUMNS]
    body = [
        [f"{each[name]:,}" if isinstance(each[name], int) and name != "seed" else str(each[name]) for name in _COLUMNS]
        for each in outcomes
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    for line in (head, *body):
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    for each in outcomes:
        if each["ended_by_themselves"]:
            print(f"{each['scenario']}: ended by themselves, with exit code: {each['ended_by_themselves']}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Chaos: kills, errors, full disks; nothing lost, nothing doubled.")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--scenario", action="append", choices=tuple(SCENARIOS))
    parser.add_argument("--power", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--alone", metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
