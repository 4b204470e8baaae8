"""Random schedules of what nobody announces, on engines that come one after the other in one run: is any version wrong?

    python tests/engines/schedule.py [--tokens 50000] [--engines 4] [--seed 1]

Adapters are evicted, read in place and added at the worker while their files change; weights are overwritten in place; each engine answers
some requests under the names that the others used. The driver knows what was in place; transformers computes what it would have said.
Exit code 1 when a version is wrong, or a sequence is joined with another engine's record.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "e2e"), str(ROOT / "support")]

from engine_process import make_models, run_scenario  # noqa: E402 - beside the tests

from logprobe.monitor.home import Home  # noqa: E402
from logprobe.monitor.store.store import Store  # noqa: E402

RUN = "run"


def play(folder: Path, *, tokens: int, engines: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Plays the schedules in one home; → tokens by what was found, and joins with other engines' records."""
    models, home = make_models(folder / "models"), folder / "home"
    counts: Counter[str] = Counter()
    settings = {"LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN}
    for number in range(seed, seed + engines):
        told = run_scenario(
            "identities", models, number, tokens // engines, script="schedule_scenario", timeout=3000, **settings
        )
        print(json.dumps(told), flush=True)
        counts += Counter(told["counts"])
    with Store.open(Home(home), read_only=True) as store:
        rows = store.query("SELECT step, sample_id, joined_by, spans FROM sequences").to_pylist()
    counts.update(f"joins {row['joined_by']}" for row in rows)
    foreign = [
        f"{row['sample_id']} of engine {row['step']} has {span['version']}"
        for row in rows
        for span in row["spans"] or ()
        if span["version"] is not None and not span["version"].startswith(f"{row['step']}-")
    ]
    return counts, foreign


def main() -> int:
    """Plays, prints, judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, foreign = play(Path(folder), **vars(options))
    known = sum(counts[name] for name in ("right", "wrong"))
    print(
        f"{known + counts['unknown']:,} tokens: {counts['wrong']:,} wrong, {counts['unknown'] / (known + counts['unknown']):.1%} unknown"
    )
    for why in sorted((name for name in counts if name.startswith("unknown: ")), key=counts.__getitem__, reverse=True):
        print(f"  {counts[why]:7,} {why}")
    joins = {name: count for name, count in counts.items() if name.startswith("joins")}
    print(f"sequences: {joins}; with records of other engines: {foreign or 'none'}")
    return int(bool(counts["wrong"] or foreign))


if __name__ == "__main__":
    sys.exit(main())
