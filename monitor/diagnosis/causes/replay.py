"""Routing replay of a mixture of experts: verified by the routes that both sides recorded."""

from __future__ import annotations

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, KNOWN, Sign
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.replay import Replay


def replay_broken(evidence: Evidence) -> Sign | None:
    """Some trained routes are exactly the sampled ones, or found at another place: they were replayed, to the wrong
    tokens."""
    replay, fault = evidence.replay, evidence.replay.fault
    if fault is None:
        return None
    return Sign(
        CERTAIN,
        1 - min(max(replay.agreement, 0.0), 1.0) if replay.compared else 1.0,
        {"where": fault.kind, "shift": fault.shift, **_numbers(replay)},
        f"The trainer's routes are the engine's for {replay.agreement:.1%} of {replay.compared:,} pairs of a token and "
        f"a layer. They are not {fault.where}: "
        "gradients there go to experts that did not see the token.",
    )


def replay_off(evidence: Evidence) -> Sign | None:
    """The engine returns routes, and the trainer chooses its own."""
    replay = evidence.replay
    if not replay.off:
        return None
    return Sign(
        KNOWN,
        0.0,
        _numbers(replay),
        f"The engine returns its routes, and the trainer's agree with them for {replay.agreement:.1%} of "
        f"{replay.compared:,} pairs of a token and a layer, in "
        "no rank or turn exactly: it chooses experts by itself, and the routes are returned for nothing.",
    )


def _numbers(replay: Replay) -> dict[str, object]:
    first, second = replay.by_half
    ranks, turns = (replay.by(name) for name in (lambda turn: turn.rank, lambda turn: min(turn.number, 1)))
    return {
        "agreement": replay.agreement,
        "pairs_compared": replay.compared,
        "worst_rank": min(ranks, key=lambda rank: ranks[rank], default=None),
        "agreement_of_worst_rank": min(ranks.values(), default=None),
        "agreement_of_first_turns": turns.get(0),
        "agreement_of_later_turns": turns.get(1),
        "agreement_of_first_halves": first,
        "agreement_of_second_halves": second,
    }
