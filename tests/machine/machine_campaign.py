"""The machine for as long as wanted, each seed another set of histories; or with a fault of before planted back.

python tests/machine/machine_campaign.py --seconds 7200
python tests/machine/machine_campaign.py --seed 7 --planted "segments go before"
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
os.environ["LOGPROBE_RECORD"] = "quiet"

from actors import replaced  # noqa: E402
from histories import drawn, go_through  # noqa: E402
from hypothesis import HealthCheck, Phase, seed, settings  # noqa: E402
from hypothesis.errors import HypothesisException  # noqa: E402
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from machine_faults import PLANTED  # noqa: E402
from test_machine import FAST, BucketMachine, Machine  # noqa: E402
from world import HAPPENED  # noqa: E402

EXAMPLES = 2  # of one seed


def run(number: int, *, steps: int, shrink: bool) -> str | None:
    """Go through the histories of a seed; return what is wrong, or None."""
    machine = seed(number)((Machine, BucketMachine)[number % 2])
    how = settings(
        max_examples=EXAMPLES,
        stateful_step_count=steps,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(machine, settings=how)
    except HypothesisException:
        raise
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return None


def history(number: int) -> str | None:
    """Go through a history with a kill; return what is wrong, or None."""
    name, bucket, doom = drawn(number)
    with tempfile.TemporaryDirectory(dir=FAST if Path(FAST).is_dir() else None) as place:
        try:
            go_through(name, Path(place), bucket=bucket, doom=doom)
        except Exception as error:
            return f"{name}, bucket {bucket}, {doom}: {type(error).__name__}: {error}"
    return None


def find(first: int, seconds: float, *, steps: int) -> dict[str, object]:
    """Try seeds until one finds something; return which, what, and after how many seconds of the clock and processor."""
    started, spent, number = time.monotonic(), time.process_time(), first
    wrong = None
    while wrong is None and time.process_time() - spent < seconds:
        wrong = run(number, steps=steps, shrink=False)
        number += 1
    took = {"seconds": round(time.monotonic() - started, 1), "processor": round(time.process_time() - spent, 1)}
    return {"seed": number - 1, **took, "found": None if wrong is None else wrong.splitlines()[0][:150]}


def main() -> int:
    """Print each seed that finds something, and as JSON what happened in all; return 1 if anything was found, or a
    planted fault was not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="with --planted: of processor time, for each fault")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--most", type=int, default=10, help="end after so many violations")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument(
        "--planted", nargs="?", const="", help="plant the faults whose names have one of these words, divided by |"
    )
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.planted is not None:
        missed = 0
        for name, fault in PLANTED.items():
            if any(words in name for words in arguments.planted.split("|")):
                with replaced(*fault.changes):
                    found = find(arguments.seed, arguments.seconds, steps=arguments.steps)
                missed += found["found"] is None
                print(json.dumps({"fault": name, "commit": fault.commit, **found}), flush=True)
        return int(missed > 0)
    started, number, wrongs = time.monotonic(), arguments.seed, Counter[str]()
    while time.monotonic() - started < arguments.seconds and len(wrongs) < arguments.most:
        wrong = history(number)
        wrong = wrong or run(number, steps=arguments.steps, shrink=not arguments.no_shrink)
        if wrong is not None:
            print(f"--- seed {number}, {time.monotonic() - started:.0f} s\n{wrong}", flush=True)
            wrongs[wrong.splitlines()[0]] += 1
        number += 1
    print(json.dumps({"seeds": number - arguments.seed, "found": wrongs, "happened": dict(HAPPENED.most_common())}))
    return int(bool(wrongs))


if __name__ == "__main__":
    sys.exit(main())
