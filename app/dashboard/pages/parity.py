"""Parity on the Diagnosis page: is the run set up as the recipe, or a reference run, asks, and does it behave like it? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from logprobe.app.dashboard.elements.links import in_address
from logprobe.monitor.diagnosis.parity import Check, Parity, Setting

RECIPE: Final = "the built-in recipe"  # what a run is held against when no reference is chosen
_SENTENCES: Final = {
    "at_parity": ("good", "At parity", "with {reference}: every requirement is met."),
    "not_at_parity": ("bad", "Not at parity", "with {reference}."),
    "unknown": (
        "unsure",
        "Cannot be determined",
        "whether it is at parity with {reference}: some facts were not recorded.",
    ),
}
_VERDICTS: Final = {
    "at_parity": ("good", "met"),
    "not_at_parity": ("bad", "not met"),
    "unknown": ("unsure", "unknown"),
}
_TRENDS: Final = {"tracks": "good", "leaves": "bad", "unknown": "unsure"}
_MOST: Final = 4  # settings of a check that are shown


def parity_data(
    found: Parity, *, reference: str | None, others: Sequence[str], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """What `browser/parity.js` draws.

    Args:
        found: of the run, with `reference` or with the recipe alone.
        reference: the run that was chosen; None: none.
        others: runs that can be chosen.
        notes: what of the address could not be had.
    """
    tone, word, rest = _SENTENCES[found.verdict]
    checks = sorted(found.checks, key=lambda check: ["not_at_parity", "unknown", "at_parity"].index(check.verdict))
    return {
        "reference": reference,
        "others": list(others),
        "notes": list(notes),
        "tone": tone,
        "word": word,
        "words": rest.format(reference=found.reference),
        "checks": [_check(check, compared=reference is not None) for check in checks],
        "trends": [
            {"tone": _TRENDS[each.verdict], "cells": [each.label, each.verdict, _step(each.leaves_step), each.reason]}
            for each in found.trajectories
        ],
        "settings": _settings(found),
        "compare": "" if reference is None else _link(found.run, reference),
    }


def _link(run: str, reference: str) -> str:
    return f"./?{urlencode({'page': 'compare', 'run': run, 'baseline': reference, 'runs': in_address([run])})}"


def _step(step: int | None) -> str:
    return "–" if step is None else f"{step:,}"


def _check(check: Check, *, compared: bool) -> dict[str, Any]:
    tone, verdict = _VERDICTS[check.verdict]
    met = check.verdict == "at_parity"
    return {
        "name": check.name,
        "layer": (check.layer or "").replace("_", " "),
        "found": [_found(item, compared=compared) for item in check.settings[:_MOST]],
        "more": max(0, len(check.settings) - _MOST),
        "expected": check.expected,
        "tone": tone,
        "verdict": verdict if check.outcome == "met" or not met else "as the reference",
        "fix": "" if met else check.fix,
        "why": "" if met else check.why,
    }


def _found(item: Setting, *, compared: bool) -> list[str]:
    """Name, value, who set it, and the reference's value where it is another."""
    other = item.reference_words if compared and item.words != item.reference_words else ""
    return [item.fact, item.words, item.provenance or "", other]


def _settings(found: Parity) -> list[list[str]]:
    """What differs from the reference: what parity depends on first."""
    looked_at = {item.fact: item for check in found.checks for item in check.settings}
    relevant = [item for item in looked_at.values() if found.trajectories and item.words != item.reference_words]
    rows = [[item.fact, item.words, item.reference_words, "yes"] for item in relevant]
    return rows + [[item.fact, item.words, item.reference_words, ""] for item in found.differences]
