"""Draw fresh runs of the second author's families and say how often the judge is right.

    python tests/judging/second/run.py --runs 5000 --seed 7 [--family f_place] [--show] [--seconds 600] [--write]

`--write` writes the YAML files under `cases` again: one of each variant of each family, seeds fixed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "support")]

from judging.second.checking import QUIET, described, differences, drawn_of, looks  # noqa: E402
from judging.second.families import FAMILIES, Case  # noqa: E402

from logprobe.monitor.judging.judge import judge  # noqa: E402

NOT_PLAIN = {"h_ended"}  # they had a fault
GROWTH = "g_"


def draw(family: str, variant: int, seed: int) -> Case:
    """One situation."""
    index = list(FAMILIES).index(family)
    return FAMILIES[family][1](np.random.default_rng([seed, index, variant]), variant)


def plain(value: Any) -> Any:
    """Without numpy and tuples, for YAML."""
    if isinstance(value, dict):
        return {k.item() if isinstance(k, np.generic) else k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def write() -> None:
    """Write one situation of each variant down."""
    for family, (variants, _) in FAMILIES.items():
        for variant in range(variants):
            case = plain(draw(family, variant, 46))
            (HERE / "cases" / f"{family}_{variant}.yaml").write_text(
                yaml.safe_dump(case, sort_keys=False, allow_unicode=True, width=140), encoding="utf-8"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--family", action="append")
    parser.add_argument("--variant", type=int)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--show", action="store_true", help="each run, not only the wrong ones")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        write()
        return
    names = [name for name in FAMILIES if not options.family or name in options.family]
    tally: dict[str, Counter[str]] = {name: Counter() for name in names}
    began = time.monotonic()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    for i in range(options.runs):
        if ended or time.monotonic() - began > options.seconds:
            break
        name = names[i % len(names)]
        variant = options.variant if options.variant is not None else (i // len(names)) % FAMILIES[name][0]
        seed = options.seed * 100_000 + i
        case = draw(name, variant, seed)
        one(name, variant, seed, case, tally[name], show=options.show)
    report(tally)


def one(name: str, variant: int, seed: int, case: Case, count: Counter[str], *, show: bool) -> None:
    """Judge one situation."""
    count["runs"] += 1
    wrong_any = False
    for at, judged, wrong in looks(case):
        sick = at == "end" and not name.startswith("h_")
        count["looks"] += 1
        if wrong:
            wrong_any = True
            count[f"wrong {at}"] += 1
        if wrong or show:
            print(
                f"{'WRONG' if wrong else 'right'} {name}/{variant} seed {seed} {at}: {case['about']}\n    {wrong}\n    {described(judged)}",
                flush=True,
            )
        if judged.advice == "enable" and sick and "enable" not in case["expect"]["advice"]:
            count["enabled under a fault"] += 1
        if judged.advice == "enable" and not sick:
            count["enabled in health"] += 1
        if "sure" in wrong or "never" in wrong:
            count["sure and wrong"] += 1
        if not sick and name not in NOT_PLAIN:
            count["healthy looks"] += 1
            count["alarms"] += judged.verdict not in ("healthy", "calibrating")
    if name.startswith("h_") and name not in NOT_PLAIN:
        wrong_any |= earlier(name, variant, seed, case, count)
    count["right"] += not wrong_any


def earlier(name: str, variant: int, seed: int, case: Case, count: Counter[str]) -> bool:
    """Look at a healthy run at two earlier steps, too."""
    drawn, any_wrong = drawn_of(case["run"]), False
    if drawn.run.steps < 30 or name == "h_same_bits":
        return False
    for step in np.random.default_rng(seed).integers(15, drawn.run.steps, 2).tolist():
        early = drawn.before(step)
        judged = judge(early.frame())
        wrong = differences(judged, QUIET, early)
        count["looks"] += 1
        count["healthy looks"] += 1
        count["alarms"] += judged.verdict not in ("healthy", "calibrating")
        count["enabled in health"] += judged.advice == "enable"
        count["sure and wrong"] += "sure" in wrong
        if wrong:
            any_wrong = True
            print(
                f"WRONG {name}/{variant} seed {seed} at {step}: {case['about']}\n    {wrong}\n    {described(judged)}",
                flush=True,
            )
    return any_wrong


def report(tally: dict[str, Counter[str]]) -> None:
    """Print the table."""
    columns = (
        "runs",
        "right",
        "wrong end",
        "wrong before",
        "enabled under a fault",
        "enabled in health",
        "sure and wrong",
        "healthy looks",
        "alarms",
    )
    print(f"{'family':26}" + "".join(f"{c:>23}" if len(c) > 12 else f"{c:>13}" for c in columns))
    total: Counter[str] = Counter()
    for name, count in tally.items():
        total += count
        print(f"{name:26}" + "".join(f"{count[c]:>23}" if len(c) > 12 else f"{count[c]:>13}" for c in columns))
    print(f"{'all':26}" + "".join(f"{total[c]:>23}" if len(c) > 12 else f"{total[c]:>13}" for c in columns))
    looked = max(total["healthy looks"], 1)
    print(
        f"alarms standing per 1,000 healthy steps looked at: {1000 * total['alarms'] / looked:.2f}; a wrong cause at known or more: {total['sure and wrong']} of {total['looks']} looks"
    )


if __name__ == "__main__":
    main()
