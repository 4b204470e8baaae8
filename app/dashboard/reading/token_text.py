"""Words of the Tokens page: states, alignment, effect of a correction, and untrusted text. The functions are pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from logprobe.monitor.analysis.token_view import SIDES, STATES, Rule

SOURCES: Final[Mapping[str, str]] = {
    "received": "rollout log-probs as the trainer received them",
    "joined": "rollout log-probs joined from the engine's record",
    "missing": "no rollout log-probs: the trainer received none and the engine's record has not arrived",
    "unaligned": "the engine's tokens differ from the trainer's: nothing is compared",
}
ALIGNMENTS: Final[Mapping[str, str]] = {
    "all": "all tokens match the engine's",
    "masked": "the tokens under the mask match the engine's",
    "prefix": "one side is longer; compared over the common prefix",
}
RULES: Final[Mapping[Rule, str]] = {
    Rule.KEPT: "kept",
    Rule.MASKED: "not trained on",
    Rule.BROKEN: "dropped: broken log-prob",
    Rule.BROKEN_SEQUENCE: "dropped with its sequence: one of its tokens is broken",
    Rule.VETO: "dropped with its sequence: ρ of one token is below veto",
    Rule.REJECTED_BELOW: "dropped: below rs_lower",
    Rule.REJECTED_ABOVE: "dropped: above rs_upper",
    Rule.MASKED_BELOW: "dropped: below is_lower",
    Rule.MASKED_ABOVE: "dropped: above is_upper",
    Rule.LIMITED_BELOW: "limited to is_lower",
    Rule.LIMITED_ABOVE: "limited to is_upper",
}
_KINDS: Final = {
    "nonfinite": "is not finite",
    "sentinel": "is a placeholder",
    "positive": "is above 0: a probability above 1",
    "zero": "is exactly 0, a certain token, where the other side is below −1",
}
_SHORT: Final = {"positive": "> 0", "zero": "= 0"}
_SPACES: Final = {"\n": "⏎", "\t": "⇥", " ": "␣", "\u00a0": "⍽"}
_HIDDEN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_ESCAPES, _FIRST_ESCAPE, _LAST_ESCAPE = 0xDC00, 0xDC80, 0xDCFF  # bytes that are no text, as Python writes them
_CONTROLS, _DELETE = 0x20, 0x7F


def visible(text: str, *, spaces: bool = True) -> str:
    r"""Return `text` with a symbol or a code for each character that is invisible or would move others.

    `spaces`: true to mark blanks and line breaks.

    >>> visible("a b\n"), visible("\u202eabc"), visible("\udce2\x00"), visible("run 7", spaces=False)
    ('a␣b⏎', '⟨U+202E⟩abc', '⟨E2⟩⟨00⟩', 'run 7')
    """
    signs = "".join(_sign(character, spaces=spaces) for character in text)
    return f"◌{signs}" if signs and unicodedata.combining(signs[0]) else signs


def _sign(character: str, *, spaces: bool) -> str:
    code = ord(character)
    if spaces and character in _SPACES:
        return _SPACES[character]
    if code < _CONTROLS or code == _DELETE:
        return f"⟨{code:02X}⟩"
    if _FIRST_ESCAPE <= code <= _LAST_ESCAPE:
        return f"⟨{code - _ESCAPES:02X}⟩"
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨U+{code:04X}⟩"
    return character


def states(pair: str) -> list[dict[str, str]]:
    """Return words for each of `STATES` under `pair`. For broken states, add the faulty column and a short name.

    An empty short name means that the value names itself: NaN, +inf, −inf or a placeholder.
    """
    behaviour, policy = SIDES[pair]
    plain = ["trained on", "masked: not trained on", f"no {behaviour} or {policy} log-prob was recorded"]
    described = [{"words": text, "side": "", "short": ""} for text in plain]
    for state in STATES[len(plain) :]:
        kind, _, side = state.partition("_")
        name = behaviour if side == "behaviour" else policy
        described.append(
            {"words": f"broken: the {name} log-prob {_KINDS[kind]}", "side": name, "short": _SHORT.get(kind, "")}
        )
    return described


def alignment(sequence: Mapping[str, Any]) -> str:
    """Describe the source of a sequence's rollout log-probs, and the match of its two records."""
    fit = ALIGNMENTS.get(sequence["alignment"] or "", "")
    return "; ".join(filter(None, [SOURCES.get(sequence["rollout_source"], sequence["rollout_source"]), fit]))


def spans(sequence: Mapping[str, Any], most: int = 4) -> str:
    """Return the weight versions that sampled a sequence, of its first `most` spans, or "" if none is known."""
    parts = sequence["spans"] or []
    words = [f"{_version(part['version'])} for {part['end'] - part['start']:,}" for part in parts[:most]]
    if len(parts) == 1:
        return _version(parts[0]["version"])
    return ", ".join([*words, *([f"{len(parts) - most:,} more"] if len(parts) > most else [])])


def _version(version: str | None) -> str:
    return "unknown" if version is None else visible(version, spaces=False)


def kept_words(sides: Sequence[Mapping[str, Any]]) -> str:
    """Describe the remaining part of a step's raw tokens, or return "" if all remain."""
    total, kept, reduced = (sum(side[name] for side in sides) for name in ("sequences", "kept", "reduced"))
    for side in sides:
        if (frozen_at := side.get("frozen_at")) is not None:
            return (
                f"Frozen since {frozen_at:%Y-%m-%d} (`keep_store_gib`): its metrics cover all {total:,} sequences, "
                "which were removed by retention; late records are not counted."
            )
    gone = total - kept - reduced
    parts = [
        f"{reduced:,} were recorded as statistics only" if reduced else "",
        f"{gone:,} were removed (`keep_gib`, `keep_days`)" if gone else "",
    ]
    why = "; ".join(filter(None, parts))
    return f"Raw tokens are kept for {kept:,} of {total:,} sequences: {why}." if why else ""


def sides_words(sides: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of sequences of a step, and the source of their rollout log-probs."""
    total = sum(side["sequences"] for side in sides)
    by_source: dict[str, int] = {}
    for side in sides:
        name = "prefix" if side["alignment"] == "prefix" else side["rollout_source"] or "unknown"
        by_source[name] = by_source.get(name, 0) + side["sequences"]
    parts = ", ".join(f"{count:,} {name}" if count < total else name for name, count in by_source.items())
    return f"{total:,} sequences, rollout log-probs: {parts}" if total else ""
