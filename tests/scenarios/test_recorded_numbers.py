"""The shipped runs through spool, ingest, join and step job: every metric of a step is what plain formulas give on its rows.

The formulas stand here once more on purpose, token by token in extended precision, and share no code with the product.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from recorded_home import take_in

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.metrics import KEYS
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.store.store import Store

RUNS = ("v0-reference", "v1-initial", "late-growth", "v1-fixed")
STEPS = 20  # of each run, from its first to its last
PRECISION = 1e-9
REDUCTIONS = {"mean": np.mean, "max": max}
Row = dict[str, Any]
Values = dict[str, Any]


def take(recorded: RecordedRun, kind: str, column: str, chosen: list[Any]) -> pa.Table:
    table = recorded.table(kind)
    return table.filter(pc.is_in(table[column], pa.array(chosen)))


def through_the_product(home: Path, tables: dict[str, pa.Table]) -> dict[int, dict[str, float | None]]:
    """Metrics by step, of rows that lie in a spool as collectors write them."""
    writer = SpoolWriter(home, "run", "trainer-test")
    for kind, table in tables.items():
        writer.write(kind, table.replace_schema_metadata())
    with Store.open(Home(home).create()) as store:
        assert take_in(store).bad_rows == 0
        rows = store.query("SELECT step, metric, value FROM metrics").to_pylist()
    found: dict[int, dict[str, float | None]] = {}
    for row in rows:
        found.setdefault(row["step"], {})[row["metric"]] = row["value"]
    return found


def clamp(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -20, 20)


def pair_values(policy: list[np.ndarray], behaviour: list[np.ndarray], low: float, high: float) -> Values:
    """Metrics of one pair from the log-probs of its sequences."""
    d_of = [p - b for p, b in zip(policy, behaviour, strict=True)]
    per_token = {
        "kl": lambda d, p, b: -d,
        "k2_kl": lambda d, p, b: d * d / 2,
        "k3_kl": lambda d, p, b: np.expm1(clamp(d)) - d,
        "reverse_kl": lambda d, p, b: np.exp(clamp(d)) * d - np.expm1(clamp(d)),
        "logprob_abs_diff_mean": lambda d, p, b: abs(d),
        "prob_abs_diff_mean": lambda d, p, b: abs(np.exp(p) - np.exp(b)),
        "mult_prob_error": lambda d, p, b: np.exp(clamp(abs(d))),
        "ratio_mean": lambda d, p, b: np.exp(clamp(d)),
    }
    values: Values = {}
    for key, function in per_token.items():
        tokens = [function(*sides) for sides in zip(d_of, policy, behaviour, strict=True)]
        values[key] = np.concatenate(tokens).mean()
        values[f"{key.removesuffix('_mean')}_seq_mean"] = np.mean([sequence.mean() for sequence in tokens])
    d, p, b = (np.concatenate(sides) for sides in (d_of, policy, behaviour))
    return values | of_tokens(d, np.exp(p), np.exp(b), low, high) | of_sequences(d_of, policy, behaviour)


def of_tokens(d: np.ndarray, p: np.ndarray, b: np.ndarray, low: float, high: float) -> Values:
    ratio, excess = np.exp(clamp(d)), np.expm1(clamp(d))
    variance = ((excess - excess.mean()) ** 2).mean()
    centred_p, centred_b = p - p.mean(), b - b.mean()
    return {
        "logprob_abs_diff_max": abs(d).max(),
        "prob_pearson": (centred_p * centred_b).sum() / np.sqrt((centred_p**2).sum() * (centred_b**2).sum()),
        "ratio_min": ratio.min(),
        "ratio_max": ratio.max(),
        "ratio_std": np.sqrt(variance),
        "ratio_deviation_1e4": 1e4 * excess.mean(),
        "chi2_token": (excess**2 + 2 * excess).mean(),
        "chi2_centered": variance / ratio.mean() ** 2,
        "ess": ratio.sum() ** 2 / (len(d) * (ratio**2).sum()),
        "clip_fraction_high": (ratio > high).mean(),
        "clip_fraction_low": (ratio < low).mean(),
        "identical_frac": (d == 0).mean(),
        "clamped_tokens": (abs(d) > 20).sum(),
        "coverage": 1,
        "nonfinite_tokens": 0,
        "impossible_tokens": 0,
    }


def of_sequences(d_of: list[np.ndarray], policy: list[np.ndarray], behaviour: list[np.ndarray]) -> Values:
    count = len(d_of)
    mean_d, mean_p, mean_b = (np.array([s.mean() for s in sides]) for sides in (d_of, policy, behaviour))
    excess = [np.expm1(clamp(d)) for d in d_of]
    overall = np.concatenate(excess).mean()
    residuals = np.array([e.sum() - overall * len(e) for e in excess])
    weights = np.exp(clamp(mean_d))
    return {
        "calibration_z": np.concatenate(excess).sum() / np.sqrt((residuals**2).sum() * count / (count - 1)),
        "chi2_token_seq_mean": np.mean([(e**2 + 2 * e).mean() for e in excess]),
        "chi2_seq": np.expm1(2 * clamp(mean_d)).mean(),
        "chi2_seq_product": np.expm1(2 * clamp(np.array([d.sum() for d in d_of]))).mean(),
        "ess_seq": weights.sum() ** 2 / (count * (weights**2).sum()),
        "training_ppl": np.exp(-mean_p).mean(),
        "training_log_ppl": -mean_p.mean(),
        "rollout_ppl": np.exp(-mean_b).mean(),
        "rollout_log_ppl": -mean_b.mean(),
        "log_ppl_diff": -mean_d.mean(),
        "log_ppl_abs_diff": abs(mean_d).mean(),
        "log_ppl_diff_max": (-mean_d).max(),
        "log_ppl_diff_min": (-mean_d).min(),
        "ppl_ratio": np.exp(-mean_d).mean(),
    }


def step_values(rows: list[Row], rollouts: dict[str, Row], numbers: dict[str, dict[str, float]]) -> Values:
    """Every metric of one step that these runs can have; `numbers`: by suffix, what stands for a version in its lag."""
    masks = [np.array(row["mask"], bool) for row in rows]

    def under_the_mask(column: str) -> list[np.ndarray]:
        return [np.array(row[column], np.longdouble)[mask] for row, mask in zip(rows, masks, strict=True)]

    old, now, advantages = (under_the_mask(name) for name in ("trainer_logprobs", "current_logprobs", "advantages"))
    reported = [row["rollout_logprobs"] or rollouts[row["sample_id"]]["logprobs"] for row in rows]
    rollout = [np.array(r, np.longdouble)[mask] for r, mask in zip(reported, masks, strict=True)]
    values: Values = {
        "entropy": np.concatenate(under_the_mask("entropy")).mean(),
        "entropy_sampled": -np.concatenate(rollout).mean(),
        "reward": np.mean([row["reward"] for row in rows]),
        "advantage_abs_mean": abs(np.concatenate(advantages)).mean(),
        "response_length": np.mean([mask.sum() for mask in masks]),
        "token_mismatch_frac": np.mean([row["token_ids"] != rollouts[row["sample_id"]]["token_ids"] for row in rows]),
        "length_mismatch_frac": 0,
        **dict.fromkeys(("routing_agreement", "routing_coverage", "routing_mismatch_frac")),  # no mixture of experts
        **dict.fromkeys(("is_weight_mean", "clipped_frac")),  # step records are not read here
        **dict.fromkeys(key for key in KEYS if key.startswith("reference.")),  # these trainers have no reference policy
    }
    pairs = {"backend": (old, rollout, 0.5, 2.0), "update": (now, old, 0.8, 1.2), "total": (now, rollout, 0.8, 1.2)}
    for pair, sides in pairs.items():
        found = pair_values(*sides)
        values |= {f"{pair}.{key}": value for key, value in found.items()}
        values[f"{pair}.kl_entropy_ratio"] = found["k3_kl"] / values["entropy"]
    values["total.kl_new_old"] = values["total.k3_kl_seq_mean"]
    values |= clipping(now, old, rollout, np.concatenate(advantages))
    for suffix, of_version in numbers.items():
        values |= lags(rows, rollouts, of_version, f"weight_lag{suffix}")
    spans = [[span["version"] for span in rollouts[row["sample_id"]]["spans"]] for row in rows]
    values["mixed_version_frac"] = np.mean([len(set(versions)) > 1 for versions in spans])
    # These trainers say nothing of sampling versions
    return values | {
        "unknown_version_frac": 0,
        "version_conflict_frac": None,
    }


def clipping(now: list[np.ndarray], old: list[np.ndarray], rollout: list[np.ndarray], advantages: np.ndarray) -> Values:
    total = [np.exp(c - r) for c, r in zip(now, rollout, strict=True)]
    geometric = np.array([np.exp((c - r).mean()) for c, r in zip(now, rollout, strict=True)])
    update = np.exp(np.concatenate(now) - np.concatenate(old))
    clipped = ((update > 1.2) & (advantages > 0)) | ((update < 0.8) & (advantages < 0))
    return {
        "total.clamp_log_ratio_new_old_indicator": np.mean([((r > 1.2) | (r < 0.8)).mean() for r in total]),
        "total.clamp_log_ratio_new_old_indicator_gspo": np.mean((geometric < 1 - 3e-4) | (geometric > 1 + 4e-4)),
        "update.pg_clip_fraction": clipped.mean(),
    }


def lags(rows: list[Row], rollouts: dict[str, Row], number: dict[str, float], key: str) -> Values:
    """Lag token by token; null as soon as a version has no number."""
    of_sequences = [
        [
            number.get(row["weight_version"], np.nan) - number.get(span["version"], np.nan)
            for span in rollouts[row["sample_id"]]["spans"]
            for _ in range(span["start"], span["end"])
        ]
        for row in rows
    ]
    tokens = np.concatenate(of_sequences)
    newest = np.mean([min(tokens) for tokens in of_sequences if tokens])
    values = {"mean": tokens.mean(), "max": tokens.max(), "min": tokens.min(), "newest": newest}
    return {f"{key}_{name}": None if np.isnan(tokens).any() else value for name, value in values.items()}


def publication(step: int, weights: list[Row]) -> Values:
    """How long the step's weights took; these runs have one engine, and a trainer that says when they were in place."""
    of_step = {row["version"] for row in weights if row["step"] == step}
    loads = [row for row in weights if row["version"] in of_step and row["source"] == "engine"]
    begun = [min(t for t in (row["requested_at"], row["started_at"]) if t) for row in loads if row["started_at"]]
    kinds = {"publish_delay": ("applied_at", begun), "publish_resume": ("resumed_at", begun)}
    kinds["update_pause"] = ("resumed_at", [row["requested_at"] for row in loads])
    values: Values = {"publish_replicas": sum(row["applied_at"] is not None for row in loads) if of_step else None}
    for key, (end, starts) in kinds.items():
        pairs = [(row[end], start) for row, start in zip(loads, starts, strict=False) if row[end] and start]
        seconds = [(stop - start).total_seconds() for stop, start in pairs]
        values |= {f"{key}_seconds_{name}": reduce(seconds) if seconds else None for name, reduce in REDUCTIONS.items()}
    return values


def version_numbers(weights: list[Row]) -> dict[str, dict[str, float]]:
    """By suffix of the metric: what a version is in versions, optimizer steps and seconds (the trainer's, if it said)."""
    weights = sorted(weights, key=lambda row: (row["source"] != "trainer", row["applied_at"] or row["time"]))
    versions, steps, seconds = {}, {}, {}
    for row in weights:
        versions[row["version"]] = float(row["version"])
        seconds.setdefault(row["version"], (row["applied_at"] or row["time"]).timestamp())
        if row["step"] is not None:
            steps.setdefault(row["version"], float(row["step"]))
    return {"": versions, "_steps": steps, "_seconds": seconds}


@pytest.mark.parametrize("name", RUNS)
def test_every_metric_is_what_plain_formulas_give(home: Path, repository: Path, name: str) -> None:
    recorded = RecordedRun(repository / "sample_data" / name)
    steps = [recorded.steps[i] for i in np.linspace(0, len(recorded.steps) - 1, STEPS).astype(int)]
    training = take(recorded, "training", "step", steps)
    rollout = take(recorded, "rollout", "sample_id", training["sample_id"].to_pylist())
    weights = recorded.table("weights")
    found = through_the_product(home, {"weights": weights, "training": training, "rollout": rollout})
    assert sorted(found) == steps

    rollouts = {row["sample_id"]: row for row in rollout.to_pylist()}
    numbers = version_numbers(weights.to_pylist())
    rows: dict[int, list[Row]] = {}
    for row in training.to_pylist():
        rows.setdefault(row["step"], []).append(row)
    for step in steps:
        expected = step_values(rows[step], rollouts, numbers) | publication(step, weights.to_pylist())
        wrong = {key: (found[step][key], expected[key]) for key in KEYS if differs(found[step][key], expected[key])}
        assert not wrong, (step, wrong)


def differs(found: float | None, expected: Any) -> bool:
    if found is None or expected is None:
        return found is not expected
    return abs(found - expected) > PRECISION * abs(expected)
