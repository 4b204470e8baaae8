"""Names of the parts of a diagnosis and of an experiment, for all texts. The functions are pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from logprobe.app.text.judgement import VERDICTS
from logprobe.app.text.numbers import duration, number
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument, NotMeasuredDocument
from logprobe.monitor.judging.growth_rule import RULE
from logprobe.monitor.judging.signatures import kind_of
from logprobe.monitor.number_text import short

LAYERS: Final = {
    "semantic": "semantic: the engine's log-probs do not mean what the trainer expects",
    "inference_path": "inference path: the engine computes a different function from the trainer",
    "objective": "objective: sampling policy and trained policy have drifted apart",
    "none": "none",
    "unknown": "unknown: the measurements do not show it",
}
ADVICE: Final = {"enable": "switch one on", "do_not_enable": "do not switch one on", "not_needed": "not needed"}
_SURE: Final = ((0.97, "certain"), (0.9, "known"), (0.5, "inferred"), (0.0, "possible"))
_EVIDENCE: Final = {
    "z": "difference, in standard errors",
    "k3_kl": "K3",
    "or": "fits almost as well",
    "engine_on_grid_share": "engine logits on the bfloat16 grid",
    "trainer_on_grid_share": "trainer logits on the bfloat16 grid",
    "engine_spread": "engine's spread of a repeated token",
    "trainer_spread": "trainer's spread of a repeated token",
}
_LEAST: Final = 0.005  # of a share that is written as a whole per cent
_UNCOUNTED: Final = ("nonfinite_logprobs", "missing_logprobs")  # tokens that are in no mean
_INFORMATIONAL: Final = {
    "as expected": "normal for this setup",
    "unknown set-up": "no setup recorded to compare with",
}
_WRONG: Final = ("growing", "critical")
# Of a table of an experiment's arms.
HEAD: Final = ("knob", "setting", "K3", "removes", "95 %", "tokens/s", "KV cache", "verdict", "leaves open")


def sure(confidence: float) -> str:
    """Return a confidence in words.

    >>> sure(0.99), sure(0.95), sure(0.85), sure(0.4)
    ('certain', 'known', 'inferred', 'possible')
    """
    return next(word for least, word in _SURE if confidence >= least)


def evidence_name(evidence: str) -> str:
    """Return a piece of evidence in words.

    >>> evidence_name("k3_kl"), evidence_name("mean_lag")
    ('K3', 'mean lag')
    >>> evidence_name("k3_lagging")
    'K3 lagging'
    """
    return _EVIDENCE.get(evidence, re.sub(r"\bk3\b", "K3", evidence.replace("_", " ")))


def verdict_line(document: DiagnosisDocument) -> str:
    """Return the verdict of a diagnosis in one line."""
    since, words = document["since_step"], f"{document['run']}: {VERDICTS[document['verdict']][1]}"
    return harmless(f"{words}, since step {since}" if document["verdict"] in _WRONG and since is not None else words)


def extent(document: DiagnosisDocument) -> str:
    """Return the size of K3 in words, or "" if unknown.

    The reference is the run's baseline. A run that is wrong without growth was wrong from its first step. For such a
    run, the reference is the level of similar setups.
    """
    level, growth = document["level"], document["growth"]
    if document["verdict"] in _WRONG and growth["verdict"] not in _WRONG and level is not None:
        return _beside_setup(level["k3"], level["expected"]["high"])
    ratio, baseline = growth["ratio"], growth["baseline"]
    if ratio is None or baseline is None:
        return ""
    if baseline <= RULE.floor and ratio <= 1:
        return f"below {short(RULE.floor)}, too small to matter"
    return f"{number(ratio)}× its baseline of {number(baseline)}"


def pace(document: DiagnosisDocument) -> str:
    """Return the present doubling time of K3 in steps, or "" if K3 does not grow or the time is unknown."""
    doubling = document["doubling_steps"]
    return "" if doubling is None else f"{doubling:.0f} steps"


def outlook(document: DiagnosisDocument, step_seconds: float | None) -> str:
    """Return the time until a growing run becomes critical at its pace, or "" if unknown.

    `step_seconds`: duration of a step, or None.

    >>> grows = {"verdict": "growing", "doubling_steps": 60.0, "growth": {"ratio": 1.5}}
    >>> outlook(grows, 120.0), outlook({**grows, "doubling_steps": None}, 120.0)
    ('critical in about 60 steps, 2 h, at this pace', '')
    """
    ratio, doubling, limit = document["growth"]["ratio"], document["doubling_steps"], RULE.critical.short_ratio
    if document["verdict"] != "growing" or doubling is None or ratio is None or not 0 < ratio < limit:
        return ""
    steps = doubling * math.log2(limit / ratio)
    lasts = "" if step_seconds is None else f", {duration(steps * step_seconds)},"
    return f"critical in about {steps:.0f} steps{lasts} at this pace"


def multiple(document: DiagnosisDocument) -> str:
    """Return the multiple of the normal K3, with the reference of `extent`, or "" if unknown."""
    level, growth = document["level"], document["growth"]
    if document["verdict"] in _WRONG and growth["verdict"] not in _WRONG and level is not None:
        high = level["expected"]["high"]
        return f"{number(level['k3'] / high)}× normal" if high and level["k3"] > high else ""
    return f"{number(growth['ratio'])}× baseline" if growth["ratio"] is not None and growth["baseline"] else ""


def _beside_setup(k3: float, high: float | None) -> str:
    if high is None:
        return number(k3)
    if k3 <= high:
        return f"{number(k3)}, normal for this setup: at most {short(high)}"
    return f"{number(k3)}, {number(k3 / high)}× the most that is normal for this setup ({short(high)})"


def level_words(document: DiagnosisDocument) -> str:
    """Compare K3 with the level of the setup for a short run. Return "" if the level is unknown."""
    level = document["level"]
    if level is None:
        return ""
    high, dtype = level["expected"]["high"], level["setup"].get("engine_dtype")
    if high is None or dtype is None:
        return f"K3 was {number(level['k3'])}; no setup was recorded to compare it with."
    sort = str(dtype).replace("bfloat16", "bf16").replace("float16", "fp16").replace("float32", "fp32")
    status = {"as expected": "normal", "above": "above normal", "far above": "far above normal"}.get(level["status"])
    return f"Level {status} for {sort}: {number(level['k3'])}, at most {short(high)}." if status else ""


def remembered(document: DiagnosisDocument) -> str:
    """Return the level of known-good runs of the setup, or "" without such runs or once the run has a baseline."""
    level = document["level"]
    memory = level and level["remembered"]
    if level is None or memory is None or document["growth"]["verdict"] != "calibrating":
        return ""
    now = (
        "K3 at lag 0 was not measured here"
        if level["numerics"] is None
        else f"this run has {number(level['numerics'])}"
    )
    return f"{memory['words'][0].upper()}{memory['words'][1:]}; {now}."


def safe_lag(document: DiagnosisDocument) -> str:
    """Return the weight lag up to which the run's tokens keep their worth, or "" if unknown."""
    lag = document.get("lag")  # documents of earlier versions have none
    return "" if lag is None else lag["words"]


def discarded(document: DiagnosisDocument) -> str:
    """Return the effect of discarding sampled requests, or "" if unknown."""
    found = document.get("discarded")  # documents of earlier versions have none
    return "" if found is None else found["words"]


def share(finding: FindingDocument) -> str:
    """Return the share of today's K3 that a finding explains, or of the unmeasured tokens, or "" if unknown."""
    now = finding["share"]["now"]
    if finding["cause"] in _UNCOUNTED and finding["evidence"].get("share") is not None:
        return f"{finding['evidence']['share']:.0%} of the tokens"
    if now is None:
        return ""
    return f"{'under 1%' if 0 < now < _LEAST else f'{now:.0%}'} of K3"


def informational(finding: FindingDocument, document: DiagnosisDocument) -> str:
    """Return the reason why an informational finding needs no action.

    Noise is normal for a setup only if its level was compared with a recorded setup.

    >>> informational({"cause": "low_precision"}, {"level": {"status": "as expected"}})
    'normal for this setup'
    """
    if kind_of(finding["cause"]) != "noise":
        return "needs no action"
    level = document["level"]
    return _INFORMATIONAL.get("" if level is None else level["status"], "not known whether normal")


def qualities(finding: FindingDocument, document: DiagnosisDocument) -> list[str]:
    """Return a finding's share of K3, and its flags: accepted, informational, or forbidding a correction."""
    parts = [share(finding)]
    if (accepted := finding["accepted"]) is not None:
        parts.append(f"accepted: {accepted['because']}")
    elif finding["urgency"] == "informational":
        parts.append(informational(finding, document))
    if finding["vetoes"]:
        parts.append("vetoes a correction")
    return [part for part in parts if part]


def standing_of(finding: FindingDocument, document: DiagnosisDocument) -> str:
    """Return the certainty of a finding, its onset and its `qualities`."""
    since = "" if finding["since_step"] is None else f", since step {finding['since_step']:,}"
    stated = "".join(f"; {quality}" for quality in qualities(finding, document))
    return f"{sure(finding['confidence'])}, {finding['confidence']:.0%}{since}{stated}"


def unmeasured(item: NotMeasuredDocument) -> str:
    """Describe a missing input of the diagnosis, and the way to measure it."""
    return f"{item['what']}: {item['why']}; to measure it, {item['how']}"


def headline(document: Mapping[str, Any]) -> str:
    """Return the deviating side and the settings to change in one or two sentences."""
    departs = ", ".join(document["departs_all"]) or document["departs"]
    words = f"Departs: {departs.replace('_', ' ')}: {document['why']}."
    if document["departs"] == "none":
        return words
    return f"{words} To change: {to_change(document['smallest_set'], parity=document['parity'])}."


def to_change(settings: Sequence[str], *, parity: bool) -> str:
    """Return the effect of changing the smallest set of `settings`.

    >>> to_change(["dtype"], parity=True)
    'dtype, which restores parity'
    """
    if not settings:
        return "nothing, as no setting that was tried removes the mismatch"
    return f"{', '.join(settings)}, which {'restores parity' if parity else 'lowers K3, but not to agreement'}"


def arm_cells(arm: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """Return the cells of an arm's row under `HEAD`. `document`: document of the experiment."""
    room, usual = arm.get("kv_tokens"), document["baseline"].get("kv_tokens")
    return [
        arm["knob"],
        arm["setting"],
        number(arm["k3"]),
        "–" if arm["removed"] is None else f"{arm['removed']:.1%}",
        _interval(arm["interval"]),
        _speed(arm.get("speed")),
        f"×{room / usual:.2f}" if room is not None and usual else "–",
        arm["verdict"] + (f" ({arm['note']})" if arm["note"] else ""),
        arm.get("leaves_open", "–"),  # documents of earlier versions do not say
    ]


def _speed(ratio: Sequence[float] | None) -> str:
    """Return the speed in tokens/s relative to the configured engine, with its interval. Old documents lack it."""
    return "–" if ratio is None else f"×{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]"


def _interval(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.0%} … {interval[1]:.0%}"
