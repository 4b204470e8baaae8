"""`logprobe score RUN --model VERSION=PATH` or `--sample FILE --model PATH`: scores the same tokens again and says
which side deviates.

The JSON form is public API, one document, unknown is null:

    {"departs": "engine_state|engine|trainer|policy_age|none|unknown", "departs_all": [...], "why",
     "scores": {"r", "r_fresh", "q", "t", "t_fresh"},
     "pairs": [{"a", "b", "k3", "abs_diff_mean", "interval", "tokens", "broken", "p50", "p95", "p99", "largest",
                "outside", "off", "tail", "sequences_off": [place in the sample …], "unequal",
                "first_unequal": [place, token of the response]}],
     "sequences": [{"sample_id", "replica", K3 by gap}], those with a token that is off,
     "dtypes": [{"engine", "trainer", "k3", "interval", "abs_diff_mean", "tokens_per_s"}], empty without --dtypes,
     "path": "decode|prefill", "exact": whether r and t are equal in every bit,
     "breaks": {"a", "b", "sequence", "operation", "token": place in prompt and response, "after", "equal"}, null
         without --exact,
     "noise_floor", "not_measured": [...], "engine": {…}, "tokens_per_s": {…}}
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from logprobe.app.proof_setup import keep, task_of
from logprobe.app.text import tables
from logprobe.app.text.numbers import interval
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.proof.dtype_grid import DtypePair, dtype_grid
from logprobe.monitor.proof.scorers.nursery import Nursery
from logprobe.monitor.proof.scoring import Score, score

_SHOWN: Final = 10  # sequences that are named
NAMES: Final = {
    "r": "r recorded",
    "t": "t recorded",
    "r_fresh": "r′ fresh engine, decode",
    "r_fresh_prefill": "r′ fresh engine, prefill",
    "r_fresh_alone": "r′ fresh engine, one request at a time",
    "q": "q reference",
    "q_rollout": "q reference, weights of the rollout",
    "t_fresh": "t′ trainer",
    "t_fresh_again": "t′ trainer, once more",
    "t_fresh_eights": "t′ trainer, eight sequences at a time",
    "t_fresh_alone": "t′ trainer, one sequence at a time",
}


def run(arguments: argparse.Namespace) -> int:
    """Prints which side deviates from which."""
    task = task_of(arguments)
    grid: tuple[DtypePair, ...] = ()
    with Nursery() as executor:
        scored = score(task.sequences, task.setup, floor=arguments.floor, exact=arguments.exact, run=executor)
        if arguments.dtypes:
            grid, problems = dtype_grid(task.sequences, task.setup, arguments.dtypes, run=executor)
            scored = replace(scored, not_measured=(*scored.not_measured, *problems))
    document = {**scored.document(), "dtypes": [pair.document() for pair in grid]}
    keep(arguments, "score", document)
    tables.show(document, lambda: text(scored, exact=arguments.exact) + dtypes_text(grid), as_json=arguments.json)
    return int(arguments.exact and not scored.exact)


def dtypes_text(grid: Sequence[DtypePair]) -> str:
    """K3 by the engine's dtype, a row each, and the trainer's."""
    if not grid:
        return ""
    by_engine: dict[str, list[DtypePair]] = {}
    for pair in grid:
        by_engine.setdefault(pair.engine, []).append(pair)
    header = ["K3, engine in", *(f"trainer in {dtype}" for dtype in by_engine), "tokens/s"]
    rows = [[dtype, *(pair.k3 for pair in pairs), pairs[0].tokens_per_s] for dtype, pairs in by_engine.items()]
    return f"\n{tables.aligned(header, rows)}\n"


def text(scored: Score, *, exact: bool = False) -> str:
    """The scores for people: the verdict first, then the gaps it rests on; with `exact` the tokens that break bit
    equality."""
    lines = [f"departs  {', '.join(scored.decision.departs_all) or scored.decision.departs}: {scored.decision.why}"]
    rows = [
        [
            NAMES[pair.a],
            NAMES[pair.b],
            pair.k3,
            interval(pair.interval),
            pair.abs_diff_mean,
            pair.p99,
            pair.largest,
            f"{pair.outside:.1%}",
            f"{pair.off} in {len(pair.sequences_off)}",
            pair.tokens,
            pair.broken or None,
        ]
        for pair in scored.pairs
    ]
    header = ["a", "b", "K3", "95 %", "mean |d|", "p99", "max", "ρ off 10 %", "above 1e-3", "tokens", "broken"]
    lines += ["", tables.aligned(header, rows), "", f"K3 up to {scored.floor:g} counts as agreement (--floor)"]
    lines += _bits(scored) if exact else []
    lines += _sequences(scored)
    lines += [f"not measured: {harmless(reason)}" for reason in scored.not_measured]
    return "\n".join(lines) + "\n"


def _bits(scored: Score) -> list[str]:
    """Whether r and t are the same numbers, and the first token of each gap that is not."""
    lines = [
        f"exact    {'r and t are equal in every bit' if scored.exact else 'r and t are not equal in every bit, or were not compared'}"
    ]
    for pair in scored.pairs:
        if pair.first_unequal is None:
            lines.append(f"  {NAMES[pair.a]}, {NAMES[pair.b]}: equal, {pair.tokens} tokens")
            continue
        at, token = pair.first_unequal
        name = harmless(scored.names[at])
        values = " and ".join(f"{scored.scores[side][at][token]:.9g}" for side in (pair.a, pair.b))  # type: ignore[index]
        lines.append(
            f"  {NAMES[pair.a]}, {NAMES[pair.b]}: {pair.unequal} unequal, first in {name}, token {token}: {values}"
        )
    return lines + _operation(scored)


def _operation(scored: Score) -> list[str]:
    """Where a fresh engine and the trainer stop to compute the same numbers."""
    if scored.breaks is None:
        return []
    at = scored.breaks
    where = f"  {NAMES[at['a']]}, {NAMES[at['b']]}, in {harmless(scored.names[at['sequence']])}"
    if at["operation"] is None:
        rest = "what differs is the head, the temperature or log-softmax, or comes of other requests beside it"
        return [f"{where}: {at['equal']} operations are equal in every bit; {rest}"]
    before = f"equal in every bit until {at['after']}" if at["after"] else "nothing before it was compared"
    return [f"{where}: differ from {at['operation']} on, first at token {at['token']} of prompt and response; {before}"]


def _sequences(scored: Score) -> list[str]:
    """Which sequences hold tokens that are off, and how many of each engine; nothing where that is most of them."""
    off, of = scored.sequences, len(scored.scores["r"])
    if not 0 < len(off) <= of / 2:
        return []
    replicas = Counter(str(sequence["replica"]) for sequence in off if sequence["replica"] is not None)
    where = f" (engines: {', '.join(f'{name} {count}' for name, count in replicas.most_common())})" if replicas else ""
    names = ", ".join(str(sequence["sample_id"]) for sequence in off[:_SHOWN]) + (", …" if len(off) > _SHOWN else "")
    return [f"off: {len(off)} of {of} sequences{harmless(where)}: {harmless(names)}"]
