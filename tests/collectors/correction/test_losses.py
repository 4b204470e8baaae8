"""Policy losses against their formulas written out token by token, their gradients, and their clip statistics."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from correction_batches import NAN, batch

from logprobe.collectors.correction import CorrectionConfig, correct, losses
from logprobe.collectors.errors import ConfigurationError, InputError

ROLLOUT, TRAINER, CURRENT, MASK, ADVANTAGES = batch(seed=3, spread=0.2)
TIS = CorrectionConfig(is_level="token", is_upper=1.1)
MIS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.9, is_upper=1.1)

Token = Callable[[float, float, float, float], float]


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def token_mean(token: Token, behaviour: np.ndarray, weights: np.ndarray, count: int) -> float:
    """Σ weight · loss(c, b, A) over tokens / count."""
    total = 0.0
    for place in zip(*np.nonzero(MASK), strict=True):
        total += weights[place] * token(CURRENT[place], behaviour[place], ADVANTAGES[place], 0)
    return total / count


def tensors(*, grad: bool = True) -> dict[str, torch.Tensor]:
    named = {"c": CURRENT, "t": TRAINER, "r": ROLLOUT, "a": ADVANTAGES, "m": MASK}
    made = {name: torch.tensor(values) for name, values in named.items()}
    made["c"].requires_grad_(grad)
    return made


ONES = MASK.astype(float)
PPO: Token = lambda c, b, a, _: clipped(math.exp(c - b), a, 0.2, 0.2)


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_ppo_is_the_clipped_objective(library: Any) -> None:
    given = map(library, (CURRENT, TRAINER, ADVANTAGES, MASK))
    assert float(losses.ppo(*given).value) == pytest.approx(token_mean(PPO, TRAINER, ONES, MASK.sum()))


def test_bypass_takes_the_rollout_policy_for_the_old_one() -> None:
    found = losses.bypass(CURRENT, ROLLOUT, ADVANTAGES, MASK)
    assert found.value.item() == pytest.approx(token_mean(PPO, ROLLOUT, ONES, MASK.sum()))


def test_bypass_with_rejection_drops_what_the_policy_of_now_left_behind() -> None:
    rejection = CorrectionConfig(rs_level="token", rs_lower=0.8, rs_upper=1.25)
    ratio = np.exp(CURRENT - ROLLOUT)
    kept = MASK & (ratio >= 0.8) & (ratio <= 1.25)
    found = losses.bypass(CURRENT, ROLLOUT, ADVANTAGES, MASK, rejection=rejection)
    assert found.value.item() == pytest.approx(token_mean(PPO, ROLLOUT, kept, MASK.sum()))
    with pytest.raises(ConfigurationError, match="already is the importance weight"):
        losses.bypass(CURRENT, ROLLOUT, ADVANTAGES, MASK, rejection=TIS)


@pytest.mark.parametrize("config", [TIS, MIS, MIS.replace(denominator="renormalize")], ids=str)
def test_decoupled_ppo_weighs_by_trainer_against_rollout(config: CorrectionConfig) -> None:
    ratio = np.exp(TRAINER - ROLLOUT)
    weights = np.minimum(ratio, 1.1) if config is TIS else np.where((ratio >= 0.9) & (ratio <= 1.1), ratio, 0)
    count = MASK.sum() if config.denominator == "keep" else (MASK & (weights > 0)).sum()
    found = losses.decoupled(CURRENT, TRAINER, ROLLOUT, ADVANTAGES, MASK, config=config)
    assert found.value.item() == pytest.approx(token_mean(PPO, TRAINER, weights, count))
    assert found.correction is not None
    assert found.correction.config == config


def test_gspo_clips_whole_sequences() -> None:
    advantages = ADVANTAGES[:, 0]
    expected = []
    for row, sampled in enumerate(MASK):
        if sampled.any():
            ratio = math.exp((CURRENT - TRAINER)[row, sampled].mean())
            expected.append(clipped(ratio, advantages[row], 0.01, 0.02))
    found = losses.gspo(CURRENT, TRAINER, advantages, MASK, low=0.01, high=0.02)
    assert found.value.item() == pytest.approx(np.mean(expected))
    limited = [not 0.99 <= math.exp((CURRENT - TRAINER)[row, MASK[row]].mean()) <= 1.02 for row in range(len(expected))]
    assert found.statistics["clamp_log_ratio_new_old_indicator"] == pytest.approx(np.mean(limited))
    assert any(limited)


def test_gspo_has_the_gradient_of_its_sequence_ratio() -> None:
    given = tensors()
    advantages = given["a"][:, 0]
    losses.gspo(given["c"], given["t"], advantages, given["m"], low=0.2, high=0.2).value.backward()
    plain = tensors()
    some = given["m"].any(-1)
    count = given["m"].sum(-1).clamp(min=1)
    ratio = torch.exp(((plain["c"] - plain["t"]) * given["m"]).sum(-1) / count)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)[some].mean()
    loss.backward()
    assert given["c"].grad.numpy() == pytest.approx(plain["c"].grad.numpy())
    assert given["c"].grad.abs().sum() > 0


@pytest.mark.parametrize("upper", [None, 1.1])
def test_reinforce_weighs_log_probs_by_a_ratio_without_gradient(upper: float | None) -> None:
    config = None if upper is None else CorrectionConfig(is_level="token", is_upper=upper)
    given = tensors()
    found = losses.reinforce(given["c"], given["r"], given["a"], given["m"], config=config)
    weights = ONES if upper is None else np.minimum(np.exp(CURRENT - ROLLOUT), upper) * MASK
    assert found.value.item() == pytest.approx(-(weights * ADVANTAGES * CURRENT).sum() / MASK.sum())
    found.value.backward()
    assert given["c"].grad.numpy() == pytest.approx(-weights * ADVANTAGES / MASK.sum())
    if upper is not None:
        assert found.statistics["clip_fraction_high"] == pytest.approx((weights[MASK] == upper).mean())
        assert found.statistics["clip_fraction_low"] == 0


def test_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() -> None:
    old, current = np.array([[-3.0, -3.0]]), np.array([[-1.0, -2.5]])
    found = losses.ppo(current, old, np.array([[-1.0, -1.0]]), dual_clip=3.0)
    assert found.value.item() == pytest.approx((3.0 + math.exp(0.5)) / 2)
    assert found.statistics["dual_clip_fraction"] == 0.5


def test_the_unbiased_kl_is_k3_times_the_ratio_and_its_gradient_goes_through_both() -> None:
    reference = np.minimum(CURRENT + 0.3, -1e-3)
    given = tensors()
    found = losses.unbiased_kl(given["c"], torch.tensor(reference), given["r"], given["m"])
    x, ratio = reference - CURRENT, np.exp(CURRENT - ROLLOUT)
    expected = ratio * (np.exp(x) - x - 1)
    assert found.value.item() == pytest.approx(expected[MASK].mean())
    found.value.backward()
    slope = np.where(MASK, expected + ratio * (1 - np.exp(x)), 0) / MASK.sum()
    assert given["c"].grad.numpy() == pytest.approx(slope)


def test_the_unbiased_kl_has_the_right_expectation_and_gradient() -> None:
    """Over all outcomes of one token, sampled by another policy: KL and its exact gradient, which K3 alone misses."""
    logits, reference, rollout = (
        torch.tensor(v, dtype=torch.float64) for v in ([0.3, -0.2, 1.0], [0, 1, 0.5], [1, 0, 0])
    )
    logits.requires_grad_()
    current, other, behaviour = (values.log_softmax(0) for values in (logits, reference, rollout))
    exact = (current.exp() * (current - other)).sum()
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    per_token = torch.stack(
        [
            losses.unbiased_kl(current[k].reshape(1, 1), other[k].reshape(1, 1), behaviour[k].reshape(1, 1)).value
            for k in range(3)
        ]
    )
    found = (behaviour.exp() * per_token).sum()
    (got,) = torch.autograd.grad(found, logits)
    assert found.item() == pytest.approx(exact.item())
    assert got.numpy() == pytest.approx(wanted.numpy())


# --- Reductions ---


def test_reductions() -> None:
    sums = [
        sum(PPO(CURRENT[p], TRAINER[p], ADVANTAGES[p], 0) for p in zip([row] * 7, range(7), strict=True) if MASK[p])
        for row in range(5)
    ]
    counts = MASK.sum(1)
    values = {
        name: float(losses.ppo(CURRENT, TRAINER, ADVANTAGES, MASK, reduction=name).value)
        for name in ("sum", "token_mean", "sequence_mean")
    }
    assert values["sum"] == pytest.approx(sum(sums))
    assert values["token_mean"] == pytest.approx(sum(sums) / counts.sum())
    assert values["sequence_mean"] == pytest.approx(np.mean([s / n for s, n in zip(sums, counts, strict=True) if n]))
    with pytest.raises(ConfigurationError, match="reduction='mean': one of 'token_mean'"):
        losses.ppo(CURRENT, TRAINER, ADVANTAGES, MASK, reduction="mean")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a policy loss needs them"):
        losses.ppo(CURRENT, TRAINER, None, MASK)


def test_lists_give_the_same_loss_and_gradient_as_padding() -> None:
    lengths = [4, 2, 0, 7, 3]
    inside = np.arange(7) < np.array(lengths)[:, None]
    leaf = torch.tensor(CURRENT, requires_grad=True)
    rows = {name: [values[row, :n] for row, n in enumerate(lengths)] for name, values in tensors(grad=False).items()}
    current = [leaf[row, :n] for row, n in enumerate(lengths)]
    ragged = losses.decoupled(current, rows["t"], rows["r"], rows["a"], config=TIS)
    ragged.value.backward()
    given = tensors()
    padded = losses.decoupled(given["c"], given["t"], given["r"], given["a"], torch.tensor(inside), config=TIS)
    padded.value.backward()
    assert ragged.value.item() == pytest.approx(padded.value.item())
    assert leaf.grad.numpy() == pytest.approx(given["c"].grad.numpy())


# --- Honesty ---


def objectives() -> dict[str, Callable[..., losses.Loss]]:
    return {
        "ppo": lambda c, t, r, a, m: losses.ppo(c, t, a, m, dual_clip=3.0),
        "bypass": lambda c, t, r, a, m: losses.bypass(c, r, a, m),
        "decoupled": lambda c, t, r, a, m: losses.decoupled(c, t, r, a, m, config=TIS),
        "gspo": lambda c, t, r, a, m: losses.gspo(c, t, a, m),
        "reinforce": lambda c, t, r, a, m: losses.reinforce(c, r, a, m, config=TIS),
        "unbiased_kl": lambda c, t, r, a, m: losses.unbiased_kl(c, t, r, m),
    }


@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("name", objectives())
def test_junk_under_mask_0_reaches_neither_value_nor_gradient(name: str, junk: float) -> None:
    results = []
    for fill in (None, junk):
        given = {
            side: torch.tensor(values if fill is None else np.where(MASK, values, fill))
            for side, values in {"c": CURRENT, "t": TRAINER, "r": ROLLOUT, "a": ADVANTAGES}.items()
        }
        given["c"].requires_grad_()
        found = objectives()[name](given["c"], given["t"], given["r"], given["a"], torch.tensor(MASK))
        found.value.backward()
        results.append((found.value.item(), given["c"].grad.numpy(), dict(found.statistics)))
    (value, gradient, statistics), (spoiled, spoiled_gradient, spoiled_statistics) = results
    assert spoiled == value
    assert (spoiled_gradient == gradient).all()
    assert (spoiled_gradient[~MASK] == 0).all()
    assert spoiled_statistics == statistics


@pytest.mark.parametrize("side", ["c", "t", "r", "a"])
@pytest.mark.parametrize("name", objectives())
def test_a_broken_token_under_the_mask_is_left_out_and_counted(name: str, side: str) -> None:
    given = tensors(grad=False)
    given[side][0, 0] = NAN
    given["c"].requires_grad_()
    found = objectives()[name](given["c"], given["t"], given["r"], given["a"], given["m"])
    found.value.backward()
    assert torch.isfinite(found.value)
    assert torch.isfinite(given["c"].grad).all()
    unused = {"ppo": "r", "bypass": "t", "gspo": "r", "reinforce": "t", "unbiased_kl": "a", "decoupled": ""}[name]
    counted = found.statistics["broken_tokens"]
    if found.correction is not None:
        counted += found.correction.report["broken_tokens"]
    assert (counted == 0) is (side in unused.split())
    if side not in unused:
        assert given["c"].grad[0, 0] == 0


@pytest.mark.parametrize("name", objectives())
def test_without_a_token_the_loss_is_0_and_so_is_its_gradient(name: str) -> None:
    given = tensors()
    found = objectives()[name](given["c"], given["t"], given["r"], given["a"], torch.zeros_like(given["m"]))
    found.value.backward()
    assert found.value == 0
    assert (given["c"].grad == 0).all()
    assert found.statistics["ratio_mean"] is None


@pytest.mark.parametrize("name", objectives())
def test_no_loss_waits_for_a_device(name: str) -> None:
    tensor = torch.empty((3, 4), device="meta")
    found = objectives()[name](tensor, tensor, tensor, tensor, tensor != 0)
    found.statistics.start()
    assert found.value.is_meta


def test_gradients_agree_with_finite_differences() -> None:
    given = tensors()
    sides = (given["t"], given["r"], given["a"], given["m"])
    for name in ("ppo", "bypass", "reinforce", "unbiased_kl"):
        if name == "reinforce":  # its weight has no gradient by design
            call = lambda c: losses.reinforce(c, sides[1], sides[2], sides[3]).value
        else:
            call = lambda c, name=name: objectives()[name](c, *sides).value
        assert torch.autograd.gradcheck(call, (given["c"],))


# --- Clip statistics ---

GOLDEN = json.loads(gzip.decompress((Path(__file__).parents[2] / "data" / "peer_views.json.gz").read_bytes()))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
@pytest.mark.parametrize(("report", "low", "high"), [("ppo_eps0.2", 0.2, 0.2), ("gspo_eps3e-4_4e-4", 3e-4, 4e-4)])
def test_statistics_agree_with_pipelinerl(case: dict[str, Any], report: str, low: float, high: float) -> None:
    names = ("current_logprobs", "rollout_logprobs", "advantages", "mask")
    arrays = [np.array(case["inputs"][name]) for name in names]
    wanted = case["reference"][f"pipelinerl/{report}"]
    key = "clamp_log_ratio_new_old_indicator"
    token_level = losses.bypass(*arrays, low=low, high=high).statistics
    assert token_level[key] == pytest.approx(wanted[f"{key}/ppo"])
    assert token_level["kl_new_old"] == pytest.approx(wanted["kl_new_old"], rel=1e-6)
    assert losses.gspo(*arrays, low=low, high=high).statistics[key] == pytest.approx(wanted[f"{key}/gspo"])


def test_clip_statistics_of_ppo() -> None:
    found = losses.ppo(CURRENT, TRAINER, ADVANTAGES, MASK).statistics
    ratio, advantages = np.exp(CURRENT - TRAINER)[MASK], ADVANTAGES[MASK]
    expected = {
        "tokens": MASK.sum(),
        "broken_tokens": 0,
        "ratio_mean": ratio.mean(),
        "ratio_min": ratio.min(),
        "ratio_max": ratio.max(),
        "kl": (TRAINER - CURRENT)[MASK].mean(),
        "clip_fraction_high": (ratio > 1.2).mean(),
        "clip_fraction_low": (ratio < 0.8).mean(),
        "pg_clip_fraction": (((ratio > 1.2) & (advantages > 0)) | ((ratio < 0.8) & (advantages < 0))).mean(),
        "dual_clip_fraction": 0.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert expected["pg_clip_fraction"] > 0


def test_a_correction_made_before_is_applied_as_it_is() -> None:
    made = correct(MIS, ROLLOUT, TRAINER, MASK)
    first = losses.ppo(CURRENT, TRAINER, ADVANTAGES, correction=made)
    second = losses.decoupled(CURRENT, TRAINER, ROLLOUT, ADVANTAGES, MASK, config=MIS)
    assert first.value.item() == pytest.approx(second.value.item())
    assert first.correction is made
