"""`logprobe score RUN --model VERSION=PATH` or `--sample FILE --model PATH`: scores the same tokens again and says who departs.

The JSON form is public API, one document, unknown is null:

    {"departs": "engine_state|engine|trainer|policy_age|none|unknown", "departs_all": [...], "why",
     "scores": {"r", "r_fresh", "q", "t", "t_fresh"},
     "pairs": [{"a", "b", "k3", "abs_diff_mean", "interval", "tokens", "broken"}],
     "path": "decode|prefill", "noise_floor", "not_measured": [...], "engine": {…}, "tokens_per_s": {…}}
"""

from __future__ import annotations

import argparse
from typing import Final

from logprobe.app.proof_setup import keep, task_of
from logprobe.app.text import tables
from logprobe.monitor.proof.scorers.nursery import Nursery
from logprobe.monitor.proof.scoring import Score, score

NAMES: Final = {
    "r": "r recorded",
    "t": "t recorded",
    "r_fresh": "r′ fresh engine, decode",
    "r_fresh_prefill": "r′ fresh engine, prefill",
    "q": "q reference",
    "q_rollout": "q reference, weights of the rollout",
    "t_fresh": "t′ trainer",
}


def run(arguments: argparse.Namespace) -> int:
    """Prints who departs from whom."""
    task = task_of(arguments)
    with Nursery() as executor:
        found = score(task.sequences, task.setup, floor=arguments.floor, run=executor)
    keep(arguments, "score", found.document())
    tables.show(found.document(), lambda: text(found), as_json=arguments.json)
    return 0


def text(found: Score) -> str:
    """The scores for people: the verdict first, then the gaps it rests on."""
    lines = [f"departs  {', '.join(found.decision.departs_all) or found.decision.departs}: {found.decision.why}"]
    rows = [
        [
            NAMES[pair.a],
            NAMES[pair.b],
            pair.k3,
            _interval(pair.interval),
            pair.abs_diff_mean,
            pair.tokens,
            pair.broken or None,
        ]
        for pair in found.pairs
    ]
    header = ["a", "b", "K3", "95 %", "mean |d|", "tokens", "broken"]
    lines += ["", tables.aligned(header, rows), "", f"K3 up to {found.floor:g} counts as agreement (--floor)"]
    lines += [f"not measured: {tables.harmless(words)}" for words in found.not_measured]
    return "\n".join(lines) + "\n"


def _interval(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.2g} … {interval[1]:.2g}"
