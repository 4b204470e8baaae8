"""The event study of the Weights page: points to draw, and what each pattern means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from logprobe.app.dashboard.elements.blocks import Block, row, table
from logprobe.app.text.numbers import number
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.event_study import Contrast, Question

Row = Mapping[str, Any]

_QUESTIONS: Final[Mapping[Question, tuple[str, str]]] = {
    "after_switch": ("first tokens of new weights", "sequences without a switch"),
    "before_switch": ("last tokens of old weights", "first tokens of new ones"),
    "cached": ("cached prompt tokens", "none cached"),
    "in_flight": ("in-flight update", "none"),
}
_MEANING: Final[Mapping[tuple[Question, str], str]] = {
    ("after_switch", "worse"): "Suggests that the KV cache of the old weights was kept: abort or recompute requests in "
    "flight, or clear the "
    "cache with the update. Tokens that are stale themselves add to it: see the lag above.",
    ("after_switch", "same"): "Requests continue as if they had started with the new weights.",
    ("after_switch", "better"): "Sequences without a switch are staler.",
    ("before_switch", "worse"): "Staleness: the trainer's weights are newer than those that sampled. It grows with the "
    "lag, and a correction is the remedy.",
    ("before_switch", "same"): "The weights change little between versions, or the trainer computed with the old ones.",
    ("before_switch", "better"): "The trainer computed with the old weights, or the version label is set too early.",
    ("cached", "worse"): "The prefix cache holds keys and values of old weights: reset it with every update.",
    ("cached", "same"): "Cached prompt tokens are harmless.",
    ("cached", "better"): "Requests without cached tokens are a different group: the first of a prompt, or after a "
    "reset. The cache is harmless.",
    ("in_flight", "worse"): "Tokens sampled across an update are further from the trainer: staleness, or a cache that "
    "was kept. See the switch above.",
    ("in_flight", "same"): "No detectable harm from in-flight updates.",
    ("in_flight", "better"): "Requests without an update are staler.",
}  # fmt: skip
_UNKNOWN: Final[Mapping[Question, str]] = {
    "after_switch": "Needs raw tokens of sequences with a switch and of sequences without.",
    "before_switch": "Needs raw tokens of sequences with a switch of versions.",
    "cached": "Needs at least two sequences of each kind that no update interrupted, recorded by the engine.",
    "in_flight": "Needs sequences with an update and sequences without, recorded by the engine.",
}


def switch_points(rows: Sequence[Row], where: str) -> dict[str, object]:
    """What `charts/points.py` draws: mean |d| by distance to a switch. `where`: of which steps."""
    points = [
        _distance(group)
        for group in rows
        if group["distance"] is not None and group["logprob_abs_diff_mean"] is not None
    ]
    reference = next((group for group in rows if group["distance"] is None), None)
    return {
        "title": "Around a weight switch",
        "hint": f"mean |d| of the log-ratio by distance to the switch, ± 2 standard errors; {where}",
        "x": "tokens after the switch",
        "log": False,
        "split": -0.5,
        "points": points,
        "reference": None if reference is None or reference["logprob_abs_diff_mean"] is None else _reference(reference),
        "empty": _no_switch(rows),
    }


def _no_switch(rows: Sequence[Row]) -> str:
    if not rows:
        return "No raw tokens of these steps are kept, or they were recorded without weight versions."
    return "No sequence of these steps was sampled by more than one version: no in-flight updates."


def _distance(group: Row) -> dict[str, object]:
    where = (
        "first token of the new weights"
        if group["distance"] == 0
        else f"{abs(group['distance'])} {'after' if group['distance'] > 0 else 'before'}"
    )
    return {
        "x": group["distance"],
        "y": group["logprob_abs_diff_mean"],
        "error": group["logprob_abs_diff_error"],
        "words": f"{where}: {_size(group)}, K3 {number(group['k3_kl'])}, {group['tokens']:,} tokens{_broken(group)}",
    }


def _reference(group: Row) -> dict[str, object]:
    words = f"sequences without a switch: {_size(group)}, {group['sequences']:,} sequences{_broken(group)}"
    return {"y": group["logprob_abs_diff_mean"], "error": group["logprob_abs_diff_error"], "words": words}


def _size(group: Row) -> str:
    error = group["logprob_abs_diff_error"]
    return number(group["logprob_abs_diff_mean"]) + ("" if error is None else f" ± {number(error)}")


def _broken(group: Row) -> str:
    return f", {group['broken']:,} broken left out" if group["broken"] else ""


def version_points(rows: Sequence[Row], where: str) -> dict[str, object]:
    """K3 by the version that sampled a sequence, oldest first; non-numeric versions keep their order."""
    single = [group for group in reversed(rows) if group["version"] is not None and group["k3_kl"] is not None]
    numbered = all(group["version"].lstrip("+-").isdecimal() for group in single)
    return {
        "title": "K3 by weight version",
        "hint": f"of sequences sampled by one version; {where}",
        "x": "weight version" if numbered else "weight versions, in order",
        "log": bool(single) and all(group["k3_kl"] > 0 for group in single),
        "split": None,
        "points": [_version(group, int(group["version"]) if numbered else at) for at, group in enumerate(single)],
        "reference": None,
        "empty": "No sequence of these steps is known to come from a single version.",
    }


def _version(group: Row, x: int) -> dict[str, object]:
    steps = (
        f"step {group['first_step']:,}"
        if group["first_step"] == group["last_step"]
        else f"steps {group['first_step']:,} to {group['last_step']:,}"
    )
    words = (
        f"version {harmless(group['version'])}: K3 {number(group['k3_kl'])}, {group['sequences']:,} sequences, "
        f"{steps}{_broken(group)}"
    )
    return {"x": x, "y": group["k3_kl"], "error": None, "words": words}


def contrasts_blocks(contrasts: Sequence[Contrast]) -> list[Block]:
    """The questions and their answers in words."""
    return [
        table(
            "patterns",
            ("tokens or requests", "mean |d|", "against", "verdict", "what it means"),
            [_contrast(contrast) for contrast in contrasts],
            empty="",
        )
    ]


def _contrast(contrast: Contrast) -> Block:
    group, others = _QUESTIONS[contrast.question]
    verdict = contrast.verdict
    meaning = _MEANING.get((contrast.question, verdict)) or _UNKNOWN[contrast.question]
    answer = {"worse": "larger", "better": "smaller", "same": "no significant difference", "unknown": "not measured"}[
        verdict
    ]
    harmful = verdict == "worse" and contrast.question in {"after_switch", "cached"}
    cells = [group, number(contrast.gap), f"{others}: {number(contrast.other)}", _verdict(contrast, answer), meaning]
    return row(cells, tone="critical" if harmful else "warning" if verdict == "worse" else "")


def _verdict(contrast: Contrast, answer: str) -> str:
    if contrast.gap is None or contrast.other is None or contrast.error is None:
        return answer
    return f"{answer}: {number(contrast.gap - contrast.other)} ± {number(contrast.error)}"


def cached_blocks(rows: Sequence[Row]) -> list[Block]:
    """Requests by cached prompt tokens and by update in flight."""
    head = ("prompt tokens from the cache", "in-flight update", "mean |d|", "K3", "sequences", "tokens")
    return [
        table(
            "cached",
            head,
            [_cached(group) for group in rows],
            empty="No sequence of these steps has statistics of both sides.",
        )
    ]


def _cached(group: Row) -> Block:
    answers = {True: "yes", False: "no", None: "unknown"}
    tokens = f"{group['tokens']:,}{_broken(group)}"
    return row(
        [
            answers[group["cached"]],
            answers[group["in_flight"]],
            _size(group),
            number(group["k3_kl"]),
            f"{group['sequences']:,}",
            tokens,
        ]
    )
