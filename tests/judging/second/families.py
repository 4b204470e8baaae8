"""Families of situations: each draws a run and says what may be concluded from what the run recorded.

An expectation names what a careful engineer would accept: `verdict`, `layer`, `advice`, `cause` are lists of what is allowed; `cause` is the first
finding that asks for something (null: none does). A finding that asks for something, is *known* or *certain* and is in neither `cause` nor
`true` is a confident wrong one. `where`: "fault" (the place named must be that of the fault's tokens, half of both at least), "fault?" (that, or none)
"around" (a wider place, of some of the fault's columns) or null. `quiet`: the step before which the run was healthy and must have been called so. The first letter of a family's name: h healthy, f fault, g
growth that a correction is right for.
"""

# Rows of tables, one situation a line.
# fmt: off

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Case = dict[str, Any]
FAMILIES: dict[str, tuple[int, Callable[[np.random.Generator, int], Case]]] = {}
BAD = ["watch", "growing", "critical", "unknown", "no_data"]
NOT_SOFTMAX = ["other_softmax", "miscalibrated_logprobs", "unknown"]
NOISE = ["low_precision", "batch_variance", "lm_head_precision"]


def family(variants: int) -> Callable[[Callable[[np.random.Generator, int], Case]], Callable[[np.random.Generator, int], Case]]:
    def add(make: Callable[[np.random.Generator, int], Case]) -> Callable[[np.random.Generator, int], Case]:
        FAMILIES[make.__name__] = (variants, make)
        return make

    return add


def healthy(about: str, run: dict[str, Any], **more: Any) -> Case:
    state = ["healthy"] if run.get("steps", 220) >= 205 else ["healthy", "calibrating"]
    expect = {"verdict": state, "layer": ["none"], "advice": ["not_needed"], "cause": [None], "where": None}
    return {"about": about, "run": run, "expect": {**expect, **more}}


def fault(about: str, run: dict[str, Any], cause: list[Any], layer: list[str], **more: Any) -> Case:
    expect = {"verdict": list(BAD), "layer": layer, "advice": ["do_not_enable"], "cause": cause}
    return {"about": about, "run": run, "expect": {**expect, **more}}


def seed(rng: np.random.Generator) -> int:
    return int(rng.integers(0, 2**31))


def ordinary(rng: np.random.Generator, **more: Any) -> dict[str, Any]:
    """A bfloat16 run of dense weights with K3 of about 1e-4 to 1e-3."""
    run = {
        "seed": seed(rng), "steps": int(rng.integers(215, 262)), "prompts": int(rng.integers(3, 6)), "answers": int(rng.choice([2, 2, 3])),
        "length": int(rng.integers(11, 17)), "engine_numerics": round(float(rng.uniform(0.012, 0.03)), 4),
        "trainer_numerics": round(float(rng.uniform(0.012, 0.03)), 4), "tail": round(float(rng.uniform(0, 0.6)), 2),
        "by_chance": round(float(rng.uniform(0, 0.6)), 2), "variety": round(float(rng.uniform(0.2, 0.6)), 2),
        "spread": round(float(rng.uniform(1.5, 3.0)), 2), "replicas": int(rng.integers(1, 4)),
    }
    return {**run, **more}


def late(rng: np.random.Generator, steps: int) -> int:
    return int(rng.integers(110, steps - 50))


# ---------------------------------------------------------------------------------------------------------------- healthy


@family(6)
def h_dense(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    about = "Dense bfloat16."
    if variant == 1:
        run |= {"temperature": 0.7}
        about = "Dense bfloat16, sampled at 0.7 on both sides."
    if variant == 2:
        run |= {"engine": {"dtype": "float32"}, "trainer": {"dtype": "float32"}, "engine_numerics": 0.0008, "trainer_numerics": 0.0008}
        about = "float32 on both sides."
    if variant == 3:
        run |= {"engine": {"dtype": "float16"}, "trainer": {"dtype": "float16"}, "engine_numerics": 0.004, "trainer_numerics": 0.004}
        about = "float16 on both sides."
    if variant == 4:
        run |= {"grid": 8, "engine_numerics": 0.002, "trainer_numerics": 0.01, "spread": 3.5, "trainer": {"dtype": "float32"}}
        about = "The engine's logits are rounded to bfloat16."
    if variant == 5:
        run |= {"tail": 1.0, "unrest": 0.25}
        about = "Heavy tails and restless steps."
    return healthy(about, run)


@family(4)
def h_experts(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, engine={"architectures": ["Qwen3MoeForCausalLM"]}, experts=[round(float(rng.uniform(0.01, 0.06)), 3), round(float(rng.uniform(0.5, 1.1)), 2)])
    about = "Experts, some tokens rerouted by rounding."
    if variant == 1:
        run |= {"experts": [0.2, 0.75], "spread": 1.1, "variety": 0.15}
        about = "Experts, a fifth of the tokens rerouted, a flat policy: r and t correlate badly."
    if variant == 2:
        run |= {"recorded": {"routing_agreement": 0.985}}
        about = "Experts, whose routes were recorded: 98.5 % agree."
    if variant == 3:
        run |= {"engine": {"architectures": ["DeepseekV3ForCausalLM"]}, "experts": [0.01, 0.35]}
        about = "Few rerouted tokens of an architecture whose name does not say experts."
    return healthy(about, run)


@family(3)
def h_eight_bits(rng: np.random.Generator, variant: int) -> Case:
    size = round(float(rng.uniform(0.08, 0.22)), 3)
    setting = [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}, {"quantization": "compressed-tensors"}][variant]
    return healthy(f"The engine has 8 bits: {setting}.", ordinary(rng, engine=setting, engine_numerics=size, tail=0.5))


@family(6)
def h_asynchronous(rng: np.random.Generator, variant: int) -> Case:
    lags = [{"kind": "spread", "to": 3}, {"kind": "rare", "most": 6}, {"kind": "fixed", "of": 1}, {"kind": "spread", "to": 4, "least": 2},
            {"kind": "spread", "to": 3, "in_flight": 0.4}, {"kind": "rare", "most": 4, "in_flight": 0.3}][variant]
    run = ordinary(rng, lags=lags, move=round(float(rng.uniform(0.004, 0.014)), 4), power=round(float(rng.uniform(1, 1.6)), 2))
    if variant % 2:
        run["recorded"] = {"loads": {"tensors": 310}}
    return healthy(f"Asynchronous, {lags}, lag costs little.", run)


@family(4)
def h_entropy(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, relative=True, steps=int(rng.integers(260, 340)))
    about = "The policy sharpens slowly, and bfloat16's grid becomes coarser with it."
    run["sharper"] = round(float(rng.uniform(1.2, 1.5)), 2)
    if variant == 1:
        run |= {"sharper": 0.7}
        about = "Entropy rises slowly."
    if variant == 2:
        run |= {"sharper": 1.0, "lessons": [int(rng.integers(100, 200)), 1.25]}
        about = "A curriculum: other prompts from one step on."
    if variant == 3:
        run |= {"sharper": 1.0, "lessons": [int(rng.integers(100, 200)), 0.75]}
        about = "A curriculum: harder prompts from one step on."
    return healthy(about, run)


@family(6)
def h_groups(rng: np.random.Generator, variant: int) -> Case:
    by = [{"tag": {"sql": 1.5, "proofs": 0.8}}, {"from_start": {0: 1.8, 1: 1.3}}, {"replica": {"e1": 1.2}}, {"prompt_length": {128: 1.2, 256: 1.5}},
          {"cached": {True: 1.15}}, {"turn": {2: 1.4, 3: 1.5}}][variant]
    return healthy(f"Some groups are noisier by nature: {by}.", ordinary(rng, by=by, replicas=2))


@family(4)
def h_records(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=2)
    run["recorded"] = [
        {"loads": {"tensors": 291, "pause": "wait"}}, {"fingerprints": {"replicas": ["e0", "e1"]}},
        {"loads": {"tensors": 291}, "fingerprints": {"replicas": ["e0", "e1"], "trainer": False, "every": 3}},
        {"loads": {"cache_unknown": True}, "joins": {"received": 900}},
    ][variant]
    return healthy(f"Everything arrives, and that is recorded: {sorted(run['recorded'])}.", run)


@family(5)
def h_little(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    run["recorded"] = [
        {"unrecorded": ["engine", "sampling", "trainer"]}, {"versions": False}, {"columns": [], "versions": False, "tokens": 0},
        {"tokens": 0.05}, {"columns": [], "unrecorded": ["trainer", "sampling"], "versions": False, "tokens": 0},
    ][variant]
    return healthy(f"Healthy, little is recorded: {run['recorded']}.", run)


@family(4)
def h_short(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, steps=[5, 20, 60, 150][variant])
    if variant == 2:
        run |= {"lags": {"kind": "spread", "to": 2}, "move": 0.008}
    return healthy(f"{run['steps']} healthy steps.", run)


@family(4)
def h_certain(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    about = "A policy so sure that many log-probs are exactly 0 on both sides."
    if variant == 0:
        run |= {"spread": 14.0}
    if variant == 1:
        run |= {"spread": 20.0, "relative": True, "engine_numerics": 0.02, "trainer_numerics": 0.02}
    if variant == 2:
        run |= {"nucleus": 0.9}
        about = "Both sides renormalise over one nucleus; its only token has log-prob 0 on both."
    if variant == 3:
        run |= {"nucleus": 0.8, "temperature": 0.8, "spread": 3.0}
        about = "Both sides have top-p 0.8 and temperature 0.8."
    return healthy(about, run)


@family(4)
def h_pairs(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    pairs = [
        {"reference": {"first": 1e-5, "last": 0.15}}, {"update": {"first": 1e-3, "last": 3e-3}},
        {"update": {"first": 1e-9, "last": 1e-9}, "reference": {"first": 1e-4, "last": 0.05}},
        {"reference": {"first": 0.02, "last": 0.08}, "update": {"first": 5e-4, "last": 5e-4}},
    ][variant]
    run["recorded"] = {"pairs": pairs}
    return healthy(f"Other pairs as they should be: {pairs}.", run)


@family(2)
def h_same_bits(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, engine={"batch_invariant": True}, faults=[{"kind": "same", "side": ["engine", "trainer"][variant]}])
    run["recorded"] = {"independent": True}
    return healthy("Equal bits from two processes with batch-invariant kernels.", run)


@family(5)
def h_ended(rng: np.random.Generator, variant: int) -> Case:
    """A fault that has ended says nothing of today; what it was may be said."""
    run = ordinary(rng, steps=int(rng.integers(270, 300)), replicas=2)
    first = int(rng.integers(60, 110))
    until = first + int(rng.integers(25, 60))
    kind, cause = [
        ({"kind": "zeros", "side": "engine"}, "unfilled_rollout"), ({"kind": "noise", "side": "trainer", "size": 1.0, "at": {"rank": [2]}}, "unknown"),
        ({"kind": "noise", "side": "engine", "size": 0.5, "at": {"replica": ["e1"]}}, "replica_divergence"),
        ({"kind": "hot", "side": "trainer", "by": 0.7}, "temperature_mismatch"), ({"kind": "value", "side": "trainer", "value": float("nan"), "at": {"tag": ["sql"]}}, "nonfinite_logprobs"),
    ][variant]
    run["faults"] = [{**kind, "since": first, "until": until}]
    allowed = [None, cause, *NOT_SOFTMAX]
    return healthy(
        f"{kind['kind']} from {first} to {until - 1}, long ago.", run, verdict=["healthy", "watch"], cause=allowed,
        layer=["none", "unknown", "semantic", "inference_path"], advice=["not_needed", "do_not_enable"], where="fault?",
    )


# ---------------------------------------------------------------------------------------------------------------- one place


PLACES: list[tuple[str, dict[str, Any]]] = [
    ("Second token of every turn", {"kind": "other", "side": "trainer", "at": {"turn_start": [1]}}),
    ("Boundary of context parallel ranks", {"kind": "noise", "side": "trainer", "size": 2.0, "at": {"from_start": [8, 9]}}),
    ("Last token before a stop", {"kind": "other", "side": "trainer", "at": {"from_end": [0], "finish": ["stop"]}}),
    ("Longest prompts", {"kind": "other", "side": "engine", "at": {"prompt_length": [256]}}),
    ("One rank", {"kind": "noise", "side": "trainer", "size": 1.2, "at": {"rank": [3]}}),
    ("One environment is sampled at half the temperature", {"kind": "hot", "side": "engine", "by": 0.45, "at": {"tag": ["shell"]}}),
    ("Third turn and later", {"kind": "noise", "side": "trainer", "size": 1.5, "at": {"turn": [3, 4, 5, 6, 7, 8]}}),
    ("First token of an answer", {"kind": "other", "side": "engine", "at": {"from_start": [0]}}),
    ("Positions beyond a limit", {"kind": "noise", "side": "engine", "size": 1.5, "at": {"from_start": list(range(20, 40))}}),
    ("Shortest prompts: left padding", {"kind": "noise", "side": "trainer", "size": 1.5, "at": {"prompt_length": [16]}}),
    ("Two of sixteen ranks", {"kind": "other", "side": "trainer", "at": {"rank": [4, 5]}}),
    ("First tokens of cut answers", {"kind": "other", "side": "engine", "at": {"from_start": [0, 1], "finish": ["length"]}}),
    ("One environment has another template", {"kind": "other", "side": "trainer", "at": {"tag": ["dialogue"]}}),
]


@family(13)
def f_place(rng: np.random.Generator, variant: int) -> Case:
    about, of = PLACES[variant]
    run = ordinary(rng, ranks=16 if "sixteen" in about else 8)
    since = late(rng, run["steps"]) if rng.random() < 0.5 else 0
    run["faults"] = [{**of, "since": since}]
    own = ["temperature_mismatch", "miscalibrated_logprobs", "other_softmax"] if of["kind"] == "hot" else []
    return fault(f"{about}, since {since}.", run, ["unknown", *own], ["unknown", *(["semantic"] if own else [])], where="around" if variant == 11 else "fault", quiet=since or None)


@family(7)
def f_place_elsewhere(rng: np.random.Generator, variant: int) -> Case:
    """The column is not recorded, or hardly anything is."""
    about, of = [PLACES[0], PLACES[4], PLACES[2], PLACES[12], PLACES[0], PLACES[11], PLACES[12]][variant]
    run = ordinary(rng, **({"steps": 45} if variant in (4, 5) else {}))
    since = [25, 25, 0][variant - 4] if variant > 3 else late(rng, run["steps"]) if rng.random() < 0.5 else 0
    run["faults"] = [{**of, "since": since}]
    run["recorded"] = [
        {"columns": ["rank", "tag", "replica"]}, {"columns": [], "tokens": 0}, {"columns": ["turn", "cached"]}, {"columns": []},
        {"columns": ["rank"], "loads": {}}, {"columns": ["rank", "replica"], "tokens": 0}, {"columns": ["rank"], "tokens": 0, "loads": {}},
    ][variant]
    if variant == 2:  # where one answer ends and its sibling goes on, the trainer did compute one context in two ways
        return fault(f"{about}, since {since}, and that column was not recorded.", run, ["unknown", "trainer_not_deterministic"], ["unknown", "inference_path"], where="fault?", quiet=since or None)
    return fault(f"{about}, since {since}, and that column was not recorded.", run, ["unknown"], ["unknown"], where="fault?", quiet=since or None)


@family(4)
def f_replica(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=[2, 3, 4, 2][variant])
    since = [0, late(rng, run["steps"]), 0, late(rng, run["steps"])][variant]
    of = [{"kind": "noise", "size": 0.6}, {"kind": "other"}, {"kind": "noise", "size": 1.2, "heavy": 0.8}, {"kind": "noise", "size": 0.8}][variant]
    run["faults"] = [{**of, "side": "engine", "at": {"replica": ["e1"]}, "since": since}]
    if variant == 3:
        run["recorded"] = {"fingerprints": {"replicas": ["e0", "e1"]}}
    return fault(f"One of {run['replicas']} replicas computes something else, since {since}.", run, ["replica_divergence", "unknown"], ["inference_path", "unknown"], where="fault", quiet=since or None)


# ---------------------------------------------------------------------------------------------------------------- values


@family(9)
def f_zeros(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=2)
    since = late(rng, run["steps"]) if variant in (3, 5, 8) else 0
    of = [
        {"side": "engine"}, {"side": "engine", "share": 0.4}, {"side": "trainer", "at": {"rank": [2, 6]}}, {"side": "trainer"}, {"side": "engine", "at": {"turn": [1, 2, 3, 4, 5]}},
        {"side": "engine", "at": {"replica": ["e1"]}}, {"side": "engine", "at": {"from_start": [0, 1, 2, 3]}}, {"side": "trainer", "at": {"tag": ["sql"]}}, {"side": "engine", "at": {"finish": ["length"]}},
    ][variant]
    run["faults"] = [{"kind": "zeros", "since": since, **of}]
    cause = "unfilled_rollout" if of["side"] == "engine" else "unfilled_trainer"
    more = {"k3": None} if set(of) == {"side"} else {}
    return fault(f"Exact zeros, {of}, since {since}.", run, [cause], ["semantic", "unknown"], verdict=["critical", "no_data"], quiet=since or None, **more)


@family(8)
def f_shape(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, temperature=[1.0, 1.0, 0.6, 1.0, 1.0, 1.0, 0.8, 1.0][variant])
    since = late(rng, run["steps"]) if variant in (3, 6) else 0
    of = [
        {"kind": "scaled", "side": "trainer", "by": 1.4}, {"kind": "scaled", "side": "engine", "by": 1.4427}, {"kind": "scaled", "side": "trainer", "by": 0.6},
        {"kind": "constant", "side": "engine", "by": 0.35}, {"kind": "constant", "side": "trainer", "by": 0.5}, {"kind": "floor", "side": "engine", "least": -2.0},
        {"kind": "scaled", "side": "engine", "by": 0.7}, {"kind": "scaled", "side": "engine", "by": 1.3, "at": {"tag": ["proofs", "sql"]}},
    ][variant]
    run["faults"] = [{**of, "since": since}]
    return fault(f"What is reported is no log of a softmax: {of}, since {since}.", run, list(NOT_SOFTMAX), ["semantic", "unknown"], quiet=since or None)


@family(6)
def f_softmax_of_other_rows(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    of = [
        {"kind": "rows", "side": "engine", "rows": 6}, {"kind": "rows", "side": "trainer", "rows": 12}, {"kind": "shard", "side": "engine"}, {"kind": "shard", "side": "trainer"},
        {"kind": "top", "side": "engine", "mass": 0.85}, {"kind": "unreported", "side": "report", "by": 0.6},
    ][variant]
    run["faults"] = [of]
    own = [["vocab_padding"], ["vocab_padding"], ["unnormalized_logits"], ["unnormalized_logits", "unnormalized_trainer"], ["truncated_support", "structured_output_mask"], ["raw_logprobs", "temperature_mismatch"]][variant]
    run["recorded"] = {"unrecorded": ["sampling", "trainer"]}
    if variant == 5:  # r and t agree: what is sampled from cannot be seen in them but for the frequencies of tokens
        return fault("Sampled at 0.6, reported and trained at 1: nothing shows it but how often tokens come.", run, [None, *own, *NOT_SOFTMAX], ["none", "semantic", "unknown"], verdict=["healthy", *BAD], advice=["do_not_enable", "not_needed"])
    return fault(f"One softmax has other rows: {of}; settings are not recorded.", run, own + NOT_SOFTMAX, ["semantic", "unknown"])


@family(7)
def f_settings(rng: np.random.Generator, variant: int) -> Case:
    run, by = ordinary(rng), round(float(rng.choice([0.5, 0.6, 0.7, 1.4])), 2)
    hot = {"kind": "hot", "side": "engine", "by": by}
    since = late(rng, run["steps"]) if variant in (3, 6) else 0
    about, cause, more = "", [], {}
    if variant == 0:
        run |= {"faults": [hot], "sampling": {"temperature": by}}
        about, cause = f"Sampled at {by}, trained at 1, both recorded.", ["temperature_mismatch"]
        more = {"confidence": "known"}
    if variant == 1:
        run |= {"faults": [hot], "recorded": {"unrecorded": ["sampling", "trainer"]}}
        about, cause = f"Sampled at {by}, trained at 1, no setting recorded.", ["temperature_mismatch", *NOT_SOFTMAX]
    if variant == 2:
        run |= {"faults": [{**hot, "side": "trainer"}]}
        about, cause = f"The trainer divides by {by}; both settings are recorded as 1.", list(NOT_SOFTMAX)
    if variant == 3:
        run |= {"faults": [{**hot, "since": since}], "recorded": {"unrecorded": ["trainer"]}}
        about, cause = f"Sampled at {by} since {since}; settings say 1, the trainer's are unknown.", ["temperature_mismatch", *NOT_SOFTMAX]
    if variant == 4:
        run |= {"faults": [{"kind": "top", "mass": 0.8}], "sampling": {"top_p": 0.8}}
        about, cause = "Top-p 0.8 is recorded for the engine, not for the trainer.", ["truncated_support"]
        more = {"confidence": "known"}
    if variant == 5:
        run |= {"temperature": 0.6, "engine": {"logprobs_mode": "raw_logprobs"}, "faults": [{"kind": "hot", "side": "report", "by": 1 / 0.6}]}
        about, cause = "Log-probs of before the temperature 0.6, which the trainer has.", ["raw_logprobs"]
        more = {"confidence": "known"}
    if variant == 6:
        run |= {"faults": [{**hot, "side": "trainer", "since": since}]}
        about, cause = f"The trainer divides by {by} since {since}, recorded as 1 on both sides.", list(NOT_SOFTMAX)
    return fault(about, run, cause, ["semantic", *(["unknown"] if "unknown" in cause else [])], quiet=since or None, **more)


@family(6)
def f_versions(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    stated = [{"kind": "feed", "every": 40}, {"kind": "seconds"}, {"kind": "ahead", "by": 1000}, {"kind": "micro", "times": 8}, {"kind": "chance"}, {"kind": "feed", "every": 8, "times": 3}][variant]
    run["recorded"] = {"stated": stated}
    if variant in (1, 4):
        run["recorded"]["loads"] = {}
    return fault(f"Labels that cannot be weight versions: {stated}.", run, ["version_conflict"], ["inference_path", "unknown"], advice=["do_not_enable", "not_needed"], never=["staleness", "missed_weight_sync"])


@family(3)
def f_versions_perhaps(rng: np.random.Generator, variant: int) -> Case:
    """Labels that are odd, of a run that is fine: no alarm about weights."""
    run = ordinary(rng)
    stated = [{"kind": "ahead", "by": 1}, {"kind": "still", "at": 0}, {"kind": "ahead", "by": -1}][variant]
    run["recorded"] = {"stated": stated}
    allowed = [None, "version_conflict", "unknown"] if variant < 2 else [None]
    return healthy(
        f"K3 is ordinary and labels are odd: {stated}.", run, cause=allowed, verdict=["healthy", *BAD] if variant < 2 else ["healthy"],
        layer=["none", "unknown", "inference_path"], advice=["not_needed", "do_not_enable"], never=["staleness", "missed_weight_sync", "late_growth"],
    )


@family(5)
def f_same_bits(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    since = late(rng, run["steps"]) if variant == 1 else 0
    of = [{}, {"since": since}, {"side": "trainer"}, {"at": {"rank": [0, 1, 2]}}, {"at": {"tag": ["sql"]}}][variant]
    run["faults"] = [{"kind": "same", **of}]
    if variant == 2:
        run |= {"engine": {"quantization": "fp8"}}
    if variant < 3:
        return fault(f"Equal bits, {of}: one array was passed twice.", run, [None, "unknown"], ["unknown", "none"], verdict=["no_data", "unknown"], advice=["do_not_enable", "not_needed"], k3=None, quiet=since or None)
    return fault(f"Equal bits in one place, {of}.", run, [None, "unknown"], ["unknown", "none"], verdict=["healthy", *BAD], advice=["do_not_enable", "not_needed"], where="fault?")


@family(7)
def f_damaged(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=2)
    about, of, cause, layer = [
        ("NaN in the trainer's log-probs of one token in fifty", {"kind": "value", "side": "trainer", "value": float("nan"), "share": 0.02}, ["nonfinite_logprobs"], ["semantic"]),
        ("−9999 in one replica", {"kind": "value", "side": "engine", "value": -9999.0, "at": {"replica": ["e1"]}, "share": 0.3}, ["nonfinite_logprobs"], ["semantic"]),
        ("Positive values: logits", {"kind": "constant", "side": "engine", "by": -4.0}, ["unnormalized_logits", *NOT_SOFTMAX], ["semantic"]),
        ("The trainer is one token late", {"kind": "shifted", "side": "trainer", "by": 1}, ["misaligned_tokens"], ["semantic"]),
        ("The engine's are one token early", {"kind": "shifted", "side": "engine", "by": -1}, ["misaligned_tokens"], ["semantic"]),
        ("End tokens with a placeholder at cut answers", {"kind": "end", "value": 0.0, "at": {"finish": ["length"]}}, ["synthetic_eos", "unfilled_rollout"], ["semantic", "unknown"]),
        ("One environment is one token late", {"kind": "shifted", "side": "trainer", "by": 1, "at": {"tag": ["sql"]}}, ["misaligned_tokens", "unknown"], ["semantic", "unknown"]),
    ][variant]
    since = late(rng, run["steps"]) if rng.random() < 0.4 else 0
    run["faults"] = [{**of, "since": since}]
    return fault(f"{about}, since {since}.", run, cause, layer, quiet=since or None)


@family(3)
def f_joins(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    joins, cause = [
        ({"other_ids": 400}, ["retokenization"]), ({"missing": 500, "missing_tokens": 6000}, ["missing_logprobs"]),
        ({"conflicts": {"compared": 20000, "differing": 9000, "engine_older": 9000, "engine_newer": 0, "first_step": 3}}, ["version_conflict"]),
    ][variant]
    run["recorded"] = {"joins": joins}
    return fault(f"Counted: {joins}.", run, cause, ["semantic", "inference_path", "unknown"])


# ---------------------------------------------------------------------------------------------------------------- levels and other pairs


@family(6)
def f_level(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    cause = ["unknown", *NOISE, "trainer_not_deterministic"]
    more: dict[str, Any] = {"advice": ["do_not_enable", "not_needed"], "verdict": ["watch", "critical", "unknown", "growing"]}
    if variant == 0:
        run |= {"engine_numerics": 0.2, "spread": 2.0, "tail": 0.3}
        about = "Dense bfloat16, K3 several times what such setups have."
    elif variant == 1:
        run |= {"trainer_numerics": 0.6, "by_chance": 0.0}
        about = "Dense bfloat16, K3 a hundred times what such setups have."
    elif variant == 2:
        run |= {"engine": {"dtype": "float32"}, "trainer": {"dtype": "float32"}, "engine_numerics": 0.03}
        about = "float32 on both sides, K3 of bfloat16."
    elif variant == 3:
        run |= {"trainer_numerics": 0.5, "by_chance": 1.0, "engine_numerics": 0.002, "trainer": {"attention_dropout": 0.1}}
        about, cause = "The trainer has dropout on, and its configuration says so.", ["trainer_not_deterministic"]
    elif variant == 4:
        run |= {"faults": [{"kind": "bias", "side": "engine", "size": 1.5}]}
        about = "The engine prefers some tokens, and samples from what it reports."
    else:
        run |= {"faults": [{"kind": "noise", "side": "trainer", "size": 0.35, "since": late(rng, run["steps"])}]}
        about = "K3 rises at one step to a hundredfold, and nothing says why."
        cause += ["step_jump", "missed_weight_sync"]
        more = {}
    return fault(about, run, cause, ["unknown", "inference_path", "objective"] if variant == 5 else ["unknown", "inference_path"], where=None, **more)


@family(4)
def f_pairs(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng)
    pairs = [
        {"reference": {"first": 0.3, "last": 50.0}}, {"update": {"first": 2e-3, "last": 8.0}},
        {"reference": {"first": 0.01, "last": 0.02, "since": 180, "then": 20.0}}, {"update": {"first": 1e-9, "last": 1e-9, "since": 150, "then": 5.0}},
    ][variant]
    run["recorded"] = {"pairs": pairs}
    return fault(f"Engine and trainer agree, another pair is not right: {pairs}.", run, ["unknown"], ["unknown", "objective"], verdict=["watch", "critical", "unknown"])


# ---------------------------------------------------------------------------------------------------------------- what the record excludes


@family(5)
def f_against_the_record(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=2, steps=int(rng.integers(270, 300)))
    since = int(rng.integers(205, 225))
    more: dict[str, Any] = {"layer": ["unknown"]}
    if variant == 0:
        run |= {"engine": {"architectures": ["MixtralForCausalLM"]}, "experts": [0.25, 4.0], "recorded": {"routing_agreement": 1.0}}
        about, cause, never = "Experts agree on every token and K3 is far above.", ["unknown"], ["moe_routing", "replay_off", "replay_broken"]
    elif variant == 1:
        run |= {"faults": [{"kind": "behind", "side": "trainer", "size": 0.06, "since": since}], "recorded": {"loads": {}}}
        about, cause, never = "K3 grows as if updates were missed; each was loaded.", ["unknown"], ["missed_weight_sync", "partial_weight_sync"]
    elif variant == 2:
        run |= {"faults": [{"kind": "noise", "side": "trainer", "size": 0.25, "since": since}], "recorded": {"fingerprints": {"replicas": ["e0", "e1"]}}}
        about, cause, never = "K3 jumps; every version's fingerprint is the trainer's.", ["unknown", "step_jump"], ["missed_weight_sync", "partial_weight_sync", "replica_divergence"]
        more = {"layer": ["unknown", "objective"]}
    elif variant == 3:
        run |= {"faults": [{"kind": "noise", "side": "engine", "size": 0.5, "at": {"cached": [True]}}], "recorded": {"loads": {}}}
        about, cause, never = "Requests with cached tokens differ; each update cleared the cache.", ["unknown"], ["stale_prefix_cache"]
        more = {"layer": ["unknown", "inference_path"], "where": "fault?"}
    else:
        run |= {"faults": [{"kind": "behind", "side": "trainer", "size": 0.06, "power": 2.0, "since": since}], "recorded": {"fingerprints": {"replicas": ["e0"], "trainer": False}}}
        about, cause, never = "Each version of the engine has a fingerprint of its own and K3 grows like a power.", ["unknown"], ["missed_weight_sync", "partial_weight_sync"]
    return fault(about, run, cause, never=never, quiet=since if variant in (1, 2, 4) else None, **more)


# ---------------------------------------------------------------------------------------------------------------- weights


@family(10)
def f_weights(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=2, steps=int(rng.integers(270, 300)))
    since = int(rng.integers(150, 225))
    behind = {"kind": "behind", "side": "trainer", "size": 0.06, "since": since}
    more: dict[str, Any] = {"quiet": since}
    if variant == 0:
        run |= {"faults": [behind], "recorded": {"fingerprints": {"replicas": ["e0", "e1"], "stuck": since - 1}}}
        about, cause, layer = "Weights stand still and labels go on; fingerprints show it.", ["missed_weight_sync"], ["inference_path"]
        more |= {"confidence": "certain"}
    elif variant == 1:
        run |= {"faults": [{**behind, "size": 0.04}], "recorded": {"fingerprints": {"replicas": ["e0"], "partial": since - 1}}}
        about, cause, layer = "Half of the tensors stand still; fingerprints show it.", ["partial_weight_sync"], ["inference_path"]
        more |= {"confidence": "certain"}
    elif variant == 2:
        run |= {"faults": [{"kind": "noise", "side": "trainer", "size": 0.3, "nth": 6}], "recorded": {"loads": {"but": 6}}}
        about, cause, layer = "One label in six comes without a load.", ["missed_weight_sync"], ["inference_path"]
        more = {"confidence": "known"}
    elif variant == 3:
        run |= {"faults": [behind], "recorded": {"loads": {"until": since - 1}}}
        about, cause, layer = "Labels without a load from one step on.", ["missed_weight_sync"], ["inference_path"]
        more |= {"confidence": "known"}
    elif variant == 4:
        run |= {"faults": [behind]}
        about, cause, layer = "Updates stop arriving, and nothing is recorded of them.", ["missed_weight_sync", "unknown"], ["inference_path", "unknown"]
    elif variant == 5:
        run |= {"faults": [{"kind": "noise", "side": "trainer", "size": 0.3, "nth": 4}]}
        about, cause, layer = "One update in four is not loaded, and nothing is recorded of it.", ["missed_weight_sync", "unknown"], ["inference_path", "unknown"]
        more = {}
    elif variant == 6:
        run |= {"faults": [{**behind, "at": {"replica": ["e1"]}}], "recorded": {"fingerprints": {"replicas": ["e0", "e1"], "stuck": since - 1, "which": ["e1"]}}}
        about, cause, layer = "One of two replicas gets no update any more; fingerprints show it.", ["missed_weight_sync", "replica_divergence"], ["inference_path"]
        more |= {"confidence": "certain"}
    elif variant == 9:
        run |= {"faults": [{"kind": "noise", "side": "trainer", "size": 0.3, "nth": 5}], "recorded": {"fingerprints": {"replicas": ["e0"], "skips": 5}}}
        about, cause, layer = "One update in five is not loaded; fingerprints show it.", ["missed_weight_sync"], ["inference_path"]
        more = {"confidence": "certain"}
    elif variant == 7:
        run |= {"faults": [{**behind, "power": 2.0}], "recorded": {"versions": False}}
        about, cause, layer = "Updates stop arriving, and not even versions are recorded.", ["missed_weight_sync", "unknown"], ["inference_path", "unknown"]
    else:
        run |= {"faults": [behind], "recorded": {"stated": {"kind": "still", "at": since}}}
        about, cause, layer = "The engine gets no update any more, and its labels say so.", ["missed_weight_sync", "unknown", "version_conflict"], ["inference_path", "unknown"]
    return fault(about, run, cause, layer, verdict=["watch", "growing", "critical", "unknown"], never=["late_growth"], **more)


@family(6)
def f_cache(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, answers=3, replicas=2)
    since = late(rng, run["steps"]) if variant in (1, 4) else 0
    size = round(float(rng.uniform(0.3, 0.7)), 2)
    stale = {"kind": "noise", "side": "engine", "size": size, "at": {"cached": [True]}, "since": since}
    flight = {"kind": "noise", "side": "engine", "size": size, "after_switch": True, "since": since}
    layer, where = ["inference_path"], "fault?"
    if variant == 0:
        run |= {"faults": [stale], "recorded": {"loads": {"kept": True}}}
        about, cause = "The prefix cache is kept, as recorded, and cached requests differ.", ["stale_prefix_cache"]
    elif variant == 1:
        run |= {"faults": [stale], "recorded": {"loads": {"kept_since": since}}}
        about, cause = f"The prefix cache is kept since {since}.", ["stale_prefix_cache"]
    elif variant == 2:
        run |= {"faults": [stale]}
        about, cause, layer = "Cached requests differ; nothing is recorded of the cache.", ["stale_prefix_cache", "unknown"], ["inference_path", "unknown"]
    else:
        run |= {"lags": {"kind": "spread", "to": 3, "in_flight": 0.5}, "move": 0.006, "faults": [flight]}
        about, cause, layer = f"Tokens after a switch differ, since {since}.", ["inflight_stale_kv", "unknown"], ["inference_path", "unknown"]
        if variant == 3:
            run |= {"recorded": {"loads": {"kept": True, "pause": "keep"}}}
        if variant == 5:
            run |= {"recorded": {"tokens": 0}}
    return fault(about, run, cause, layer, where=where, quiet=since or None)


# ---------------------------------------------------------------------------------------------------------------- growth


def growing(rng: np.random.Generator, **more: Any) -> tuple[dict[str, Any], int]:
    onset = int(rng.integers(210, 240))
    run = ordinary(rng, steps=onset + int(rng.integers(105, 140)), replicas=2, engine_numerics=0.02, trainer_numerics=0.02, spread=2.0)
    return {**run, "growth": {"onset": onset, "doubling": int(rng.integers(17, 27))}, **more}, onset


@family(6)
def g_growth(rng: np.random.Generator, variant: int) -> Case:
    run, onset = growing(rng)
    about = "Policies drift apart and each update arrives"
    if variant == 0:
        run["recorded"] = {"loads": {}}
    elif variant == 1:
        run["recorded"] = {"fingerprints": {"replicas": ["e0", "e1"]}}
    elif variant == 2:
        run |= {"lags": {"kind": "spread", "to": 3}, "recorded": {"loads": {}}}
        run["growth"] |= {"lagged": True, "size": 0.025}
        about = "What a version changes grows, and older tokens suffer"
    elif variant == 3:
        run |= {"lags": {"kind": "fixed", "of": 1}, "recorded": {"fingerprints": {"replicas": ["e0"]}}}
        run["growth"] |= {"lagged": True, "size": 0.025}
        about = "All tokens are one version old, and what a version changes grows"
    elif variant == 4:
        run |= {"sharper": 1.15, "relative": True, "recorded": {"loads": {}, "pairs": {"reference": {"first": 1e-4, "last": 0.1}}}}
        about = "Policies drift apart while entropy falls"
    else:
        run |= {"lags": {"kind": "rare", "most": 3, "in_flight": 0.2}, "move": 0.006, "recorded": {"loads": {"tensors": 200}, "columns": ["cached", "in_flight", "replica", "rank"]}}
        about = "Policies drift apart, asynchronously"
    expect = {"verdict": ["growing", "critical"], "layer": ["objective"], "advice": ["enable"], "cause": ["late_growth", "staleness"], "since": [onset - 30, onset + 60], "where": None, "quiet": onset}
    return {"about": f"{about}, since {onset}.", "run": run, "expect": expect}


@family(4)
def g_lag(rng: np.random.Generator, variant: int) -> Case:
    since = int(rng.integers(150, 210))
    run = ordinary(rng, steps=since + 110, move=0.09, power=[1.0, 1.5, 1.0, 1.2][variant])
    run |= {"lags": {"kind": "growing", "since": since, "each": [6, 9, 7, 8][variant], "mixed": variant != 3}}
    run["recorded"] = [{"loads": {}}, {"fingerprints": {"replicas": ["e0"]}}, {}, {"loads": {}}][variant]
    expect = {"verdict": ["growing", "critical"], "layer": ["objective"], "advice": ["enable"], "cause": ["staleness", "late_growth"], "where": None, "quiet": since}
    if variant == 3:
        expect["cause"] += ["unknown"]
        expect |= {"advice": ["enable", "do_not_enable"], "layer": ["objective", "unknown"]}
    return {"about": f"Tokens become older, {run['lags']}.", "run": run, "expect": expect}


@family(1)
def g_growth_unproven(rng: np.random.Generator, variant: int) -> Case:
    run, onset = growing(rng)
    expect = {"verdict": ["growing", "critical"], "layer": ["objective", "unknown"], "advice": ["enable", "do_not_enable"], "cause": ["late_growth", "unknown"], "quiet": onset}
    return {"about": f"Policies drift apart since {onset}; nothing says whether weights arrive.", "run": run, "expect": expect}


@family(13)
def f_growth_twins(rng: np.random.Generator, variant: int) -> Case:
    """Growth that a correction would hide."""
    run, onset = growing(rng)
    cause, layer = ["unknown"], ["unknown", "inference_path"]
    more: dict[str, Any] = {}
    if variant == 0:
        del run["growth"]
        run |= {"faults": [{"kind": "behind", "side": "trainer", "size": 0.05, "since": onset}]}
        about, cause = "A random walk since the onset: updates do not arrive, nothing recorded.", ["unknown", "missed_weight_sync"]
    elif variant == 1:
        run["growth"] |= {"at": {"rank": [5]}, "size": 0.06}
        run["recorded"] = {"loads": {}}
        about, more = "Growth in one rank alone.", {"where": "growth"}
    elif variant == 2:
        run["growth"] |= {"at": {"replica": ["e1"]}, "size": 0.04}
        run["recorded"] = {"loads": {}}
        about, cause, more = "Growth in one replica alone.", ["replica_divergence", "unknown"], {"where": "growth"}
    elif variant == 3:
        run["recorded"] = {"loads": {"until": onset - 1}}
        about, cause, layer = "Growth since loads ended.", ["missed_weight_sync"], ["inference_path"]
    elif variant == 4:
        run |= {"recorded": {"loads": {}}, "faults": [{"kind": "zeros", "side": "engine", "at": {"rank": [1, 4]}}]}
        about, cause, layer = "Growth with loads, and zeros in two ranks.", ["unfilled_rollout"], ["semantic", "unknown"]
    elif variant == 5:
        run["growth"] |= {"at": {"from_end": [0, 1]}, "size": 0.08}
        run["recorded"] = {"loads": {}}
        about, more = "Growth at the end of answers alone.", {"where": "growth"}
    elif variant == 6:
        run |= {"recorded": {"fingerprints": {"replicas": ["e0", "e1"], "stuck": onset - 1}}}
        about, cause, layer = "Growth since the fingerprints stand still.", ["missed_weight_sync"], ["inference_path"]
    elif variant == 7:
        run["growth"] |= {"at": {"tag": ["sql"]}, "size": 0.04}
        run["recorded"] = {"loads": {}}
        about, more = "Growth in one environment alone.", {"where": "growth"}
    elif variant == 10:
        run["growth"] |= {"at": {"rank": [0, 1, 2, 3]}, "size": 0.05}
        run |= {"tail": 0.8, "recorded": {"loads": {}, "columns": ["cached"], "tokens": 0}}
        about = "Growth in half of the ranks, which were not recorded, and no tokens."
    elif variant == 11:
        run["growth"] |= {"at": {"from_start": list(range(6))}, "size": 0.05}
        run |= {"tail": 0.8, "recorded": {"fingerprints": {"replicas": ["e0"]}, "columns": ["rank", "replica"]}}
        about = "Growth in the first half of answers, and no place was recorded but for the tokens themselves."
    elif variant == 12:
        run["growth"] |= {"at": {"from_end": [0, 1]}, "size": 0.08}
        run["recorded"] = {"loads": {}, "columns": ["cached"], "tokens": 0}
        about = "Growth at the end of answers alone, of which only sums were recorded."
    else:
        run["growth"] |= {"at": {"rank": [5]} if variant == 8 else {"tag": ["sql"]}, "size": 0.05}
        run["recorded"] = {"loads": {}, "columns": ["cached"], "tokens": int(variant == 8)}
        about = f"Growth in {'one rank' if variant == 8 else 'one environment'} alone, and that column was not recorded."
    return fault(f"{about} Onset {onset}.", run, cause, layer, quiet=None if variant == 4 else onset, **more)


# ---------------------------------------------------------------------------------------------------------------- mixtures


@family(13)
def f_two(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, replicas=2)
    layer: list[str] = ["semantic"]
    more: dict[str, Any] = {}
    if variant == 0:
        run |= {"sampling": {"temperature": 0.6}, "faults": [{"kind": "hot", "side": "engine", "by": 0.6}, {"kind": "noise", "side": "engine", "size": 0.3, "at": {"replica": ["e1"]}}]}
        about, cause, true = "A temperature on one side, and a replica that differs a little.", ["temperature_mismatch"], ["replica_divergence", "unknown"]
    elif variant == 1:
        run, _ = growing(rng)
        run |= {"recorded": {"loads": {}}, "faults": [{"kind": "other", "side": "trainer", "at": {"rank": [2]}, "since": 100}]}
        about, cause, true, layer = "One rank is wrong since 100, and policies drift apart later.", ["unknown"], ["late_growth"], ["unknown"]
    elif variant == 2:
        run |= {"recorded": {"fingerprints": {"replicas": ["e0", "e1"], "stuck": 120}}, "faults": [{"kind": "behind", "side": "trainer", "size": 0.06, "since": 121}, {"kind": "noise", "side": "trainer", "size": 0.8, "at": {"tag": ["shell"]}}]}
        about, cause, true, layer = "Weights stand still, and one environment differs.", ["missed_weight_sync"], ["unknown"], ["inference_path"]
    elif variant == 3:
        run |= {"recorded": {"loads": {"but": 5}}, "sampling": {"temperature": 0.7}, "faults": [{"kind": "hot", "side": "engine", "by": 0.7}, {"kind": "noise", "side": "trainer", "size": 0.3, "nth": 5}]}
        about, cause, true = "A temperature on one side, and labels without loads.", ["temperature_mismatch", "missed_weight_sync"], []
        layer += ["inference_path"]
    elif variant == 4:
        run, _ = growing(rng)
        run |= {"answers": 3, "recorded": {"loads": {"kept": True}}, "faults": [{"kind": "noise", "side": "engine", "size": 0.6, "at": {"cached": [True]}}]}
        about, cause, true, layer = "A stale cache from the start, and policies drift apart later.", ["stale_prefix_cache"], ["late_growth"], ["inference_path"]
    elif variant == 5:
        run |= {"lags": {"kind": "growing", "since": 120, "each": 7}, "move": 0.09, "recorded": {"loads": {}}, "faults": [{"kind": "zeros", "side": "engine", "at": {"replica": ["e1"]}}]}
        about, cause, true, layer = "Tokens become older, and a replica returns zeros.", ["unfilled_rollout"], ["staleness", "late_growth"], ["semantic", "unknown"]
    elif variant in (7, 8):
        at = {"turn": [1, 2, 3, 4, 5]} if variant == 7 else {"from_start": [0, 1, 2, 3]}
        run |= {"recorded": {"unrecorded": ["sampling", "trainer"]}, "faults": [{"kind": "zeros", "side": "engine", "at": at}, {"kind": "rows", "side": "trainer", "rows": 12}]}
        about, cause, true, layer = "Zeros in one place, padded rows at the trainer, and no settings.", ["unfilled_rollout", "vocab_padding", *NOT_SOFTMAX], [], ["semantic", "unknown"]
    elif variant in (9, 10):
        run |= {"replicas": variant - 7, "faults": [{"kind": "hot", "side": "trainer", "by": 1.4, "since": 160}, {"kind": "other", "side": "engine", "at": {"replica": ["e1"]}, "since": 184}]}
        about, cause, true, layer = "A trainer's temperature, and later a replica with other weights.", [*NOT_SOFTMAX, "replica_divergence", "temperature_mismatch"], [], ["semantic", "inference_path", "unknown"]
    elif variant in (11, 12):
        everywhere, noise, cause = [({"kind": "shifted", "side": "trainer", "by": 1}, 2.5, ["misaligned_tokens"]), ({"kind": "other", "side": "trainer"}, 11.0, ["different_model"])][variant - 11]
        run |= {"ranks": 5, "spread": 0.5 if variant == 11 else 2.2, "faults": [everywhere, {"kind": "noise", "side": "trainer", "size": noise, "at": {"rank": [2]}}]}
        about, true = "All tokens are of another text or model, and one rank differs more.", []
    else:
        run |= {"faults": [{"kind": "noise", "side": "trainer", "size": 1.5, "at": {"rank": [6]}}, {"kind": "value", "side": "trainer", "value": float("nan"), "share": 0.004}]}
        about, cause, true, layer = "One rank is wrong, and few tokens are NaN.", ["unknown", "nonfinite_logprobs"], [], ["unknown", "semantic"]
    return fault(about, run, cause, layer, true=true, **more)


@family(5)
def f_newly(rng: np.random.Generator, variant: int) -> Case:
    """A fault of the last dozen steps."""
    run = ordinary(rng, replicas=2, prompts=6)
    since = run["steps"] - int(rng.integers(12, 18))
    of, cause, layer = [
        ({"kind": "zeros", "side": "engine"}, ["unfilled_rollout"], ["semantic", "unknown"]), ({"kind": "other", "side": "trainer", "at": {"rank": [1]}}, ["unknown"], ["unknown"]),
        ({"kind": "value", "side": "engine", "value": float("-inf"), "share": 0.1}, ["nonfinite_logprobs"], ["semantic"]), ({"kind": "other", "side": "engine", "at": {"replica": ["e1"]}}, ["replica_divergence", "unknown"], ["inference_path", "unknown"]),
        ({"kind": "scaled", "side": "engine", "by": 1.6}, list(NOT_SOFTMAX), ["semantic", "unknown"]),
    ][variant]
    run["faults"] = [{**of, "since": since}]
    return fault(f"Since {since}, a dozen steps ago: {of}.", run, cause, layer, quiet=since)


@family(5)
def f_short(rng: np.random.Generator, variant: int) -> Case:
    run = ordinary(rng, steps=[6, 15, 30, 12, 40][variant], prompts=6)
    more: dict[str, Any] = {"verdict": [*BAD, "calibrating"] if variant == 2 else BAD}
    if variant == 0:
        run |= {"faults": [{"kind": "zeros", "side": "engine"}]}
        cause, layer = ["unfilled_rollout"], ["semantic", "unknown"]
    elif variant == 1:
        run |= {"sampling": {"temperature": 0.6}, "faults": [{"kind": "hot", "side": "engine", "by": 0.6}]}
        cause, layer = ["temperature_mismatch"], ["semantic"]
    elif variant == 2:
        run |= {"faults": [{"kind": "other", "side": "trainer", "at": {"rank": [3]}}]}
        cause, layer = ["unknown"], ["unknown"]
    elif variant == 3:
        run |= {"faults": [{"kind": "same"}]}
        cause, layer, more = [None, "unknown"], ["unknown", "none"], {"verdict": ["no_data", "unknown"], "k3": None, "advice": ["do_not_enable", "not_needed"]}
    else:
        run |= {"faults": [{"kind": "shifted", "side": "trainer", "by": 1}]}
        cause, layer = ["misaligned_tokens"], ["semantic"]
    return fault(f"{run['steps']} steps: {run['faults'][0]['kind']}.", run, cause, layer, **more)


@family(5)
def f_little(rng: np.random.Generator, variant: int) -> Case:
    """A fault of which little is recorded: unknown, and no confident cause."""
    run = ordinary(rng, steps=int(rng.integers(260, 290)))
    nothing = {"unrecorded": ["engine", "sampling", "trainer"], "versions": False, "tokens": 0, "columns": []}
    run["recorded"] = nothing
    state, cause, layer, advice = list(BAD), ["unknown"], ["unknown"], ["do_not_enable"]
    if variant == 0:
        run |= {"faults": [{"kind": "hot", "side": "trainer", "by": 0.6}]}
        cause, layer = [*NOT_SOFTMAX, "temperature_mismatch"], ["unknown", "semantic"]
    elif variant == 1:
        run |= {"faults": [{"kind": "noise", "side": "engine", "size": 0.35}]}
        state, cause, layer, advice = ["healthy", *BAD], [None, "unknown"], ["unknown", "none"], ["do_not_enable", "not_needed"]
    elif variant == 2:
        run |= {"faults": [{"kind": "behind", "side": "trainer", "size": 0.06, "since": 210}]}
        layer = ["unknown", "inference_path"]
        cause = ["unknown", "missed_weight_sync"]
    elif variant == 3:
        run |= {"faults": [{"kind": "other", "side": "trainer", "since": 205}]}
        cause += ["different_model", "misaligned_tokens"]
        layer = ["unknown", "semantic"]
    else:
        run |= {"faults": [{"kind": "noise", "side": "engine", "size": 0.5, "at": {"replica": ["e0"]}, "since": 200}]}
    return fault(f"Nothing but sums by step: {run['faults'][0]}.", run, cause, layer, verdict=state, advice=advice, never=["late_growth", "staleness", "stale_prefix_cache", "replica_divergence"])


@family(4)
def f_beside_drift(rng: np.random.Generator, variant: int) -> Case:
    """A fault while healthy K3 moves."""
    run = ordinary(rng, relative=True, replicas=2, steps=int(rng.integers(260, 300)))
    since = int(rng.integers(120, 190))
    if variant == 0:
        run |= {"sharper": 1.4, "faults": [{**PLACES[0][1], "since": since}]}
        cause, layer, where = ["unknown"], ["unknown"], "fault"
    elif variant == 1:
        run |= {"sharper": 1.4, "sampling": {"temperature": 0.7}, "faults": [{"kind": "hot", "side": "engine", "by": 0.7}]}
        cause, layer, where, since = ["temperature_mismatch"], ["semantic"], None, 0
    elif variant == 2:
        run |= {"lessons": [90, 1.2], "faults": [{"kind": "noise", "side": "engine", "size": 0.7, "at": {"replica": ["e1"]}, "since": since}]}
        cause, layer, where = ["replica_divergence", "unknown"], ["inference_path", "unknown"], "fault"
    else:
        run |= {"lags": {"kind": "spread", "to": 3}, "move": 0.012, "sharper": 1.2, "faults": [{**PLACES[4][1], "since": since}]}
        cause, layer, where = ["unknown"], ["unknown"], "fault"
    return fault(f"While healthy K3 moves: {run['faults'][0]}.", run, cause, layer, where=where, quiet=since or None)


# ---------------------------------------------------------------------------------------------------------------- reports


_RAW: dict[str, Any] = {"kind": "hot", "side": "report"}
_NEGATED = {"kind": "scaled", "side": "trainer", "by": -1.0}
_SILENT = {"unrecorded": ["sampling", "trainer"]}
_LOADS = {"loads": {"tensors": 399}}
_GROWING = {"steps": 300, "growth": {"onset": 170, "doubling": 25, "size": 0.02}, "recorded": {"loads": {}}}
# What users reported in public, rebuilt: words, parts of the run, causes that are right, and further expectations.
REPORTS: list[tuple[str, dict[str, Any], list[Any], dict[str, Any]]] = [
    ("Log-probs of before the temperature 0.6, mode not recorded", {"temperature": 0.6, "engine": {"logprobs_mode": None}, "faults": [{**_RAW, "by": 1 / 0.6}]}, ["raw_logprobs", *NOT_SOFTMAX], {}),
    ("Rescored by a prefill at 1, sampled at 1.3, said to be processed", {"temperature": 1.3, "faults": [{**_RAW, "by": 1 / 1.3}]}, ["raw_logprobs", *NOT_SOFTMAX], {}),
    ("The trainer forgets a temperature that its settings name", {"temperature": 0.8, "faults": [{"kind": "hot", "side": "trainer", "by": 1.25}]}, ["temperature_mismatch", *NOT_SOFTMAX], {}),
    ("Raw log-probs are divided by the temperature", {"temperature": 0.7, "faults": [{**_RAW, "by": 1 / 0.7}, {"kind": "scaled", "side": "engine", "by": 1 / 0.7}]}, ["raw_logprobs", *NOT_SOFTMAX], {}),
    ("Two in a hundred log-probs of the engine stay 0", {"faults": [{"kind": "zeros", "side": "engine", "share": 0.02}]}, ["unfilled_rollout", "miscalibrated_logprobs", "unknown"], {}),
    ("The trainer hands over its loss", {"faults": [_NEGATED]}, ["unnormalized_trainer"], {}),
    ("One rank hands over its loss", {"faults": [{**_NEGATED, "at": {"rank": [3]}}]}, ["unnormalized_trainer"], {}),
    ("The trainer hands over its loss since 150", {"faults": [{**_NEGATED, "since": 150}]}, ["unnormalized_trainer"], {"quiet": 150}),
    ("The trainer hands over probabilities", {"faults": [{"kind": "probability", "side": "trainer"}]}, ["unnormalized_trainer"], {"true": ["nonfinite_logprobs"]}),
    ("The engine returns probabilities", {"faults": [{"kind": "probability", "side": "engine"}]}, ["unnormalized_logits"], {"true": ["nonfinite_logprobs"]}),
    ("The trainer's rows come back in another order since 120", {"faults": [{"kind": "rows_swapped", "side": "trainer", "since": 120}]}, ["different_model", "misaligned_tokens", "unknown"], {"quiet": 120}),
    ("Rows of one rank come back in another order", {"prompts": 6, "ranks": 4, "faults": [{"kind": "rows_swapped", "side": "trainer", "at": {"rank": [2]}}]}, ["different_model", "misaligned_tokens", "unknown"], {"where": "fault"}),
    ("One prompt in seven is far off, and no column tells which", {"faults": [{"kind": "prompts", "side": "engine", "size": 1.5, "each": 7}]}, ["unknown"], {"where": "fault?"}),
    ("The last three tokens before the longest length", {"faults": [{"kind": "noise", "side": "engine", "size": 2.5, "heavy": 0.5, "at": {"from_end": [0, 1, 2], "finish": ["length"]}}]}, ["unknown"], {"where": "fault"}),
    ("An adapter never arrives while every load is recorded: K3 climbs from the first step on", {"steps": 300, "faults": [{"kind": "initial", "side": "trainer", "size": 0.03}], "recorded": _LOADS}, ["missed_weight_sync", "unknown"], {"never": ["late_growth"]}),
    ("An adapter never arrives, asynchronous, every load recorded", {"steps": 300, "lags": {"kind": "spread", "to": 3}, "faults": [{"kind": "initial", "side": "trainer", "size": 0.015}], "recorded": _LOADS}, ["missed_weight_sync", "unknown"], {"never": ["late_growth", "staleness"]}),
    ("Weights are dropped by sleep before every tenth generation", {"faults": [{"kind": "noise", "side": "engine", "size": 1.0, "nth": 10}]}, ["missed_weight_sync", "unknown"], {}),
    ("A repetition penalty that no record names", {"faults": [{"kind": "penalty", "by": 1.15}], "recorded": _SILENT}, list(NOT_SOFTMAX), {}),
    ("A truncation of the model's own defaults, where requests say none", {"faults": [{"kind": "top", "mass": 0.9}]}, list(NOT_SOFTMAX), {"never": ["truncated_support"]}),
    ("A draft model's log-probs of accepted tokens", {"faults": [{"kind": "draft", "side": "report", "size": 0.3, "share": 0.6}]}, list(NOT_SOFTMAX), {}),
    ("The sampler uses a random number again in one of twenty tokens", {"vocabulary": 40, "spread": 3.5, "faults": [{"kind": "sticky", "share": 0.05}]}, ["miscalibrated_logprobs"], {}),
    ("One environment is sampled greedily, with log-probs of 0", {"faults": [{"kind": "greedy", "side": "engine", "at": {"tag": ["sql"]}}]}, ["unfilled_rollout", "temperature_mismatch", *NOT_SOFTMAX], {}),
    ("Policies drift apart, and one in 25 of the trainer's log-probs is negated", {**_GROWING, "faults": [{**_NEGATED, "share": 0.04}]}, ["unnormalized_trainer"], {"true": ["late_growth"]}),
    ("Policies drift apart, and one in a hundred of the trainer's is 0", {**_GROWING, "faults": [{"kind": "zeros", "side": "trainer", "share": 0.01}]}, ["unfilled_trainer", "miscalibrated_logprobs", "unknown"], {"true": ["late_growth"]}),
    ("An adapter is not applied since 130, every load recorded", {"faults": [{"kind": "noise", "side": "engine", "size": 0.35, "since": 130}], "recorded": _LOADS}, ["unknown"], {"never": ["late_growth"]}),
    ("Weights are quantised on the way, and no setting says so", {"faults": [{"kind": "noise", "side": "engine", "size": 0.25}]}, ["unknown"], {}),
    ("Each boundary of chunks of a context", {"length": 18, "faults": [{"kind": "noise", "side": "trainer", "size": 1.2, "at": {"from_start": [7, 15, 23, 31]}}]}, ["unknown"], {"where": "fault"}),
]


@family(len(REPORTS))
def f_reports(rng: np.random.Generator, variant: int) -> Case:
    about, parts, cause, more = REPORTS[variant]
    return fault(f"{about}.", ordinary(rng, **parts), cause, ["semantic", "unknown", "inference_path"], **more)
