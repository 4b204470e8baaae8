"""Write the document of a judgement: sentences, level, decomposition, and missing inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from logprobe.monitor.judging.decomposition import why_it_grew
from logprobe.monitor.judging.discarding import discarding
from logprobe.monitor.judging.document import (
    CorrectionDocument,
    DiagnosisDocument,
    FindingDocument,
    LevelDocument,
    ShareDocument,
    Verdict,
)
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import GROWS, Acceptance, Confidence, Finding, Judgement, Place, digits
from logprobe.monitor.judging.level import in_words, setup_of
from logprobe.monitor.judging.signatures import UNKNOWN, bounded
from logprobe.monitor.judging.unmeasured import not_measured

CONFIDENCES: Final[Mapping[Confidence, float]] = MappingProxyType(
    {Confidence.CERTAIN: 0.99, Confidence.KNOWN: 0.95, Confidence.INFERRED: 0.85, Confidence.POSSIBLE: 0.4}
)
_REASONS: Final = MappingProxyType(
    {
        "growth": "weight updates arrive and the policies drift apart, which importance sampling corrects",
        "lag": "engine and trainer agree and the policies differ by lag, which importance sampling corrects",
        "weights unproven": "nothing recorded shows that weight updates arrive; a fingerprint of the weights tells",
        UNKNOWN: "semantic and inference-path faults could not be ruled out; see what was not measured",
    }
)


_GROWTH: Final[Mapping[Verdict, str]] = MappingProxyType(
    {"healthy": "K3 does not grow", **dict.fromkeys(GROWS, "what explains the growth of K3 is accepted")}
)


def diagnosed(frame: Frame, accepted: Sequence[Acceptance] = ()) -> DiagnosisDocument:
    """Judge a frame and explain the judgement."""
    return explained(judge(frame, accepted), frame)


def explained(judgement: Judgement, frame: Frame) -> DiagnosisDocument:
    """Return the document of a judgement of a frame."""
    level = _level(judgement, frame)
    return {
        "run": frame.run,
        "verdict": judgement.verdict,
        "since_step": judgement.since,
        "doubling_steps": frame.growth.doubling_steps,
        "layer": judgement.layer,
        "findings": _findings(judgement),
        "not_measured": list(not_measured(frame, judgement.findings)),
        "correction": _correction(judgement, frame, level),
        "unexplained": _rounded(judgement.unexplained),
        "level": level,
        "growth": frame.growth.document(),
        "why_it_grew": why_it_grew(frame),
        "lag": judgement.lag,
        "discarded": None if frame.sampled is None else discarding(frame.sampled),
        "framework": None,
    }


def _correction(judgement: Judgement, frame: Frame, level: LevelDocument | None) -> CorrectionDocument:
    advice = judgement.advice
    if judgement.reason == "veto":
        cause = next(f.cause for f in judgement.findings if f.vetoes)
        first = "find what is wrong" if cause == UNKNOWN else f"fix {cause}"
        return {"advice": advice, "why": f"{first} first: a correction would hide it"}
    if advice == "not_needed":
        grows = _GROWTH.get(frame.growth.verdict, "growth of K3 is not judged yet")
        return {"advice": advice, "why": f"{grows}; {in_words(level)}"}
    return {"advice": advice, "why": _REASONS[judgement.reason]}


# ------------------------------------------------------------------------------------------------ findings


def _findings(judgement: Judgement) -> list[FindingDocument]:
    """Return the documents of the findings. Of several with the same text, return only the surest."""
    documents: dict[tuple[str, str], FindingDocument] = {}
    for finding in judgement.findings:
        document = _finding(finding, judgement)
        documents.setdefault((finding.cause, document["explanation"]), document)
    return list(documents.values())


def _finding(finding: Finding, judgement: Judgement) -> FindingDocument:
    evidence = {**finding.evidence, **_place(_own_place(finding))}
    return {
        "cause": finding.cause,
        "layer": finding.layer,
        "confidence": CONFIDENCES[finding.confidence],
        "evidence": {name: _plain(value) for name, value in evidence.items()},
        "explanation": _explanation(finding),
        "fix": _remedy(finding, judgement),
        "since_step": finding.since,
        "settings": [],
        "share": _share(finding),
        "urgency": finding.urgency,
        "vetoes": finding.vetoes,
        "accepted": None if finding.accepted is None else finding.accepted.document(),
    }


def _share(finding: Finding) -> ShareDocument:
    return {"now": _rounded(finding.share), "growth": _rounded(finding.growth)}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _remedy(finding: Finding, judgement: Judgement) -> str:
    """Return the remedy. Include the advice to switch a correction on only if the judgement advises one."""
    signature = finding.signature
    vetoing = next((f for f in judgement.findings if f.vetoes), None)
    if not signature.corrected or judgement.advice == "enable":
        return bounded(signature.remedy, finding.evidence)
    left = bounded(signature.corrected, finding.evidence)
    if vetoing is None:
        return left
    first = "find what is wrong" if vetoing.cause == UNKNOWN else f"fix {vetoing.cause}"
    return f"First {first}, and no correction until then. Then: {left[0].lower()}{left[1:]}"


def _explanation(finding: Finding) -> str:
    """Return the sentence of the cause with the numbers behind the finding."""
    words = " ".join(_unknown(finding)) if finding.cause == UNKNOWN else finding.signature.words
    told = [sentence for clause in finding.signature.told if (sentence := _told(clause, finding.evidence))]
    own = _own_place(finding)
    place = [] if own is None or finding.cause == UNKNOWN else [f"{place_words(own, dated=finding.since is None)}."]
    over = [] if finding.until is None else [f"The last step with it is {finding.until}."]
    return " ".join([words, *told, *place, *over])


def _own_place(finding: Finding) -> Place | None:
    """Return the place of a finding, or None if the finding does not explain most of the mismatch there."""
    place = finding.place
    little = place is not None and finding.share is not None and finding.share < place.share / 2
    return None if little else place


def _told(clause: str, evidence: Mapping[str, object]) -> str:
    """Return a sentence with its numbers, or "" if one of them is missing."""
    known = {name: value for name, value in evidence.items() if value is not None}
    try:
        return clause.format_map(known)
    except KeyError:
        return ""


_FROM_START: Final = {
    "reference": "the reference is not the policy that training began with, or is scored otherwise",
    "update": "the trainer's two computations of one policy differ (dropout, dtype, temperature), or a step moves it far",
}


def _identical(evidence: Mapping[str, Any]) -> Iterator[str]:
    """Describe equal bits of all tokens, or of some."""
    if "part" in evidence:
        yield f"{evidence['part']:.0%} of the tokens have identical log-probs, bit by bit, in runs between others that differ."
        yield "One side may have been filled in with the other's values there."
        yield f"They make K3 smaller than it is: without them it is about {evidence['others']:.2g}."
        return
    how = evidence["identical"]
    exactly = how if how == "bit by bit" else f"once rounded to {how}"
    yield f"Both sides have identical log-probs, {exactly}, which two computations do not give in this setup."
    yield "One array may have been recorded twice, so the mismatch is not measured."


def _unknown(finding: Finding) -> Iterator[str]:
    """Describe a mismatch without a named cause: place, step and excluded causes."""
    evidence = finding.evidence
    if "identical" in evidence:
        yield from _identical(evidence)
        return
    if "pair" in evidence:
        name, k3, limit = evidence["pair"], evidence["k3"], evidence["limit"]
        yield f"K3 of the pair {name} is {k3:.2g}, above {limit:.2g}."
        if evidence["from_start"]:
            yield f"It was so from the first step on: {_FROM_START[str(name)]}."
        return
    if finding.place is not None:
        yield f"{place_words(finding.place, dated=finding.since is None)}."
        yield "No test names the cause."
        return
    if "every" in evidence:
        yield f"In {evidence['steps']:,} steps, about every {evidence['every']}th, K3 is a multiple of that in all others."
    elif "remains" in evidence:
        yield f"The numbers look like {evidence['looks_like']}, but that would leave a K3 of {evidence['remains']:.2g}."
    elif "looks_like" in evidence:
        excluded = f", which the record excludes ({str(evidence['excluded_by']).replace('_', ' ')})"
        yield f"The numbers look like {evidence['looks_like']}{excluded}."
    elif "jump" in evidence:
        yield f"K3 rose {evidence['jump']:.3g} times within a few steps, which no drift does."
    elif "above" in evidence:
        setup = "any setup" if evidence["unknown_setup"] else "such a setup"
        yield f"K3 of {evidence['k3']:.2g} is beyond {evidence['above']:.2g}, the most that {setup} is reported to have."
    yield "The mismatch is measured, and no test names its cause."


def _place(place: Place | None) -> dict[str, object]:
    if place is None:
        return {}
    where = "; ".join(f"{name} = {', '.join(map(str, values))}" for name, values in place.columns.items())
    return {"where": where, "share_of_k3": place.share, "share_of_tokens": place.tokens}


def place_words(place: Place, *, dated: bool = True) -> str:
    """Describe the tokens that hold most of K3, with `dated` also the first step."""
    where = " of ".join(_WORDS.get(column, _other(column))(values) for column, values in place.columns.items())
    since = "" if place.since is None or not dated else f", since step {place.since}"
    return f"{place.share:.0%} of K3 is in {place.tokens:.1%} of the tokens: {where}{since}"


def _from_end(values: Sequence[object]) -> str:
    numbers = sorted(int(str(value)) for value in values)
    if numbers == list(range(len(numbers))):
        return "the last token" if len(numbers) == 1 else f"the last {len(numbers)} tokens"
    return f"tokens {_runs(numbers)} before the end of the sequence"


def _from_start(values: Sequence[object]) -> str:
    numbers = sorted(int(str(value)) for value in values)
    if numbers == list(range(len(numbers))):
        return "the first token" if len(numbers) == 1 else f"the first {len(numbers)} tokens"
    return f"tokens at positions {_runs(numbers)}"


def _turn_start(values: Sequence[object]) -> str:
    return f"{_from_start(values)} of a turn"


def _runs(numbers: Sequence[int]) -> str:
    """Write numbers as ranges.

    >>> _runs([3, 4, 5, 9])
    '3 to 5, 9'
    """
    parts: list[list[int]] = []
    for value in numbers:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)


def _prompt_lengths(values: Sequence[object]) -> str:
    """Describe octaves of prompt lengths by their lower ends.

    >>> _prompt_lengths([128.0, 256.0, 1024.0])
    'prompts of 128 to 511, 1024 to 2047 tokens'
    """
    parts: list[list[int]] = []
    for value in sorted(int(float(str(value))) for value in values):
        if parts and value == 2 * parts[-1][-1]:
            parts[-1].append(value)
        else:
            parts.append([value])
    return f"prompts of {', '.join(f'{part[0]} to {max(2 * part[-1] - 1, part[-1])}' for part in parts)} tokens"


def _other(column: str) -> Callable[[Sequence[object]], str]:
    return lambda values: f"{column.replace('_', ' ')} {', '.join(map(str, values))}"


_WORDS: Final[Mapping[str, Callable[[Sequence[object]], str]]] = MappingProxyType(
    {
        "from_end": _from_end,
        "from_start": _from_start,
        "turn_start": _turn_start,
        "finish": lambda values: f"answers with finish_reason {', '.join(map(str, values))}",
        "cached": lambda values: (
            "requests with cached prompt tokens" if values[0] else "requests without cached tokens"
        ),
        "in_flight": lambda values: "sequences across a weight update" if values[0] else "sequences of one version",
        "prompt_length": _prompt_lengths,
    }
)


def _plain(value: object) -> object:
    """Return a value with five digits, or None for a number that JSON cannot represent."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - NaN
    return value


# ------------------------------------------------------------------------------------------------ level


def _level(judgement: Judgement, frame: Frame) -> LevelDocument | None:
    """Return the document of the level, or None if nothing could be compared."""
    level, first, now = judgement.level, frame.first, frame.now
    if not frame.gap.n:
        return None
    shown = level.status not in {"unknown set-up", "not measured"}
    return {
        "k3": digits(now.k3 if now.n else frame.gap.k3),
        "numerics": None if level.k3 is None else digits(level.k3),
        "expected": {"low": level.low if shown else None, "high": level.high if shown else None},
        "setup": setup_of(frame),
        "source": level.source if shown else "",
        "bands": list(level.bands) if shown else [],
        "status": level.status,
        "first": digits(first.k3) if first.n else None,
        "remembered": None if frame.remembered is None else frame.remembered.document(),
        "settled": level.settled,
    }
