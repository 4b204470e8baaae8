"""The text of `logprobe bisect --only-score`: the deviating side, and the mismatches as evidence."""

from __future__ import annotations

from collections import Counter
from typing import Final

from logprobe.app.text import tables
from logprobe.app.text.numbers import interval
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.proof.scoring import Score

_SHOWN: Final = 10  # sequences that are named
_NAMES: Final = {
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


def text(scored: Score, *, exact: bool = False) -> str:
    """Return the scores as text: the verdict and its mismatches. `exact`: true to add the tokens that break bit
    equality.
    """
    lines = [f"departs  {', '.join(scored.decision.departs_all) or scored.decision.departs}: {scored.decision.why}"]
    rows = [
        [
            _NAMES[pair.a],
            _NAMES[pair.b],
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
    lines += ["", tables.fitted(header, rows), "", f"K3 up to {scored.floor:g} counts as agreement"]
    lines += _bits(scored) if exact else []
    lines += _sequences(scored)
    lines += [f"not measured: {harmless(reason)}" for reason in scored.not_measured]
    return "\n".join(lines) + "\n"


def _bits(scored: Score) -> list[str]:
    """State whether r and t are bitwise equal, with the first token of each difference."""
    lines = [
        f"exact    {'r and t are equal in every bit' if scored.exact else 'r and t are not equal in every bit, or were not compared'}"
    ]
    for pair in scored.pairs:
        if pair.first_unequal is None:
            lines.append(f"  {_NAMES[pair.a]}, {_NAMES[pair.b]}: equal, {pair.tokens} tokens")
            continue
        at, token = pair.first_unequal
        name = harmless(scored.names[at])
        values = " and ".join(f"{scored.scores[side][at][token]:.9g}" for side in (pair.a, pair.b))  # type: ignore[index]
        lines.append(
            f"  {_NAMES[pair.a]}, {_NAMES[pair.b]}: {pair.unequal} unequal, first in {name}, token {token}: {values}"
        )
    return lines + _operation(scored)


def _operation(scored: Score) -> list[str]:
    """Describe the first operation in which a fresh engine and the trainer differ."""
    if scored.breaks is None:
        return []
    at = scored.breaks
    where = f"  {_NAMES[at['a']]}, {_NAMES[at['b']]}, in {harmless(scored.names[at['sequence']])}"
    if at["operation"] is None:
        rest = "what differs is the head, the temperature or log-softmax, or comes of other requests beside it"
        return [f"{where}: {at['equal']} operations are equal in every bit; {rest}"]
    before = f"equal in every bit until {at['after']}" if at["after"] else "nothing before it was compared"
    return [f"{where}: differ from {at['operation']} on, first at token {at['token']} of prompt and response; {before}"]


def _sequences(scored: Score) -> list[str]:
    """List the deviating sequences and their number per engine, or nothing if most sequences deviate."""
    off, of = scored.sequences, len(scored.scores["r"])
    if not 0 < len(off) <= of / 2:
        return []
    replicas = Counter(str(sequence["replica"]) for sequence in off if sequence["replica"] is not None)
    where = f" (engines: {', '.join(f'{name} {count}' for name, count in replicas.most_common())})" if replicas else ""
    names = ", ".join(str(sequence["sample_id"]) for sequence in off[:_SHOWN]) + (", …" if len(off) > _SHOWN else "")
    return [f"off: {len(off)} of {of} sequences{harmless(where)}: {harmless(names)}"]
