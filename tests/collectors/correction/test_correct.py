"""`correct`: broken, empty and unfitting input, layouts and types. Its methods: `tests/properties/test_correction_definition.py`."""

from __future__ import annotations

import copy
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch
from correction_batches import EVERYTHING, INF, LEVELS, NAN, batch

from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.errors import InputError

ROLLOUT, TRAINER, MASK, ADVANTAGES = batch()


# --- Honesty ---


@pytest.mark.parametrize("impossible", [-INF, -9999.0])
def test_the_veto_takes_a_token_the_trainer_rules_out_as_ratio_0(impossible: float) -> None:
    trainer = ROLLOUT.copy()
    trainer[1, 0] = impossible
    found = correct(CorrectionConfig(veto=1e-4), ROLLOUT, trainer, MASK)
    assert not found.mask[1].any()


BROKEN = {
    "NaN r": (NAN, -1.0, "nonfinite_behaviour"),
    "+inf r": (INF, -1.0, "nonfinite_behaviour"),
    "−inf r": (-INF, -1.0, "nonfinite_behaviour"),
    "NaN t": (-1.0, NAN, "nonfinite_policy"),
    "both NaN": (NAN, NAN, "nonfinite_behaviour"),
    "both −inf": (-INF, -INF, "nonfinite_behaviour"),
    "sentinel r": (-9999.0, -1.0, "sentinel_behaviour"),
    "sentinel on both sides": (-9999.0, -9999.0, "sentinel_behaviour"),
    "+1.0 r": (1.0, 1.0, "sentinel_behaviour"),
    "sentinel t": (-1.0, -9999.0, "sentinel_policy"),
    "probability above 1": (0.5, 0.5, "positive_behaviour"),
    "trainer's probability above 1": (-0.1, 0.2, "positive_policy"),
    "exact 0.0": (0.0, -3.0, "zero_behaviour"),
}


@pytest.mark.parametrize("config", [CorrectionConfig(is_level="token"), EVERYTHING], ids=str)
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_token_is_dropped_and_counted(fault: str, config: CorrectionConfig) -> None:
    rollout, trainer, mask = ROLLOUT.copy(), TRAINER.copy(), MASK.copy()
    rollout[0, 0], trainer[0, 0], kind = BROKEN[fault]
    mask[0, 0] = False
    spoiled = correct(config, rollout, trainer, MASK, advantages=ADVANTAGES)
    without = correct(config, ROLLOUT, TRAINER, mask, advantages=ADVANTAGES)
    vetoed = config.veto is not None and kind in {"nonfinite_policy", "sentinel_policy"} and not np.isnan(trainer[0, 0])
    assert spoiled.weights[0, 0] == 0
    assert not spoiled.mask[0, 0]
    if not vetoed:
        assert spoiled.weights == pytest.approx(without.weights)
        assert (spoiled.mask == without.mask).all()
    assert (spoiled.report["broken_tokens"], spoiled.report[kind]) == (1, 1)
    assert spoiled.report["broken_frac"] == pytest.approx(1 / MASK.sum())
    assert spoiled.report["tokens"] == MASK.sum()


def test_a_product_with_an_unknown_factor_is_unknown() -> None:
    rollout = ROLLOUT.copy()
    rollout[0, 0] = NAN
    for config in (CorrectionConfig(is_level="sequence"), CorrectionConfig(rs_level="sequence", rs_upper=1e9)):
        found = correct(config, rollout, TRAINER, MASK)
        assert not found.mask[0].any()
        assert found.mask[1].any()
        assert found.report["masked_seq_frac"] == 1 / 4


@pytest.mark.parametrize("config", [EVERYTHING, CorrectionConfig(is_level="sequence", is_mode="mask", normalize=True)])
def test_a_batch_without_a_token_has_weights_0_and_a_report_of_nothing(config: CorrectionConfig) -> None:
    found = correct(config, ROLLOUT, TRAINER, np.zeros_like(MASK), advantages=ADVANTAGES)
    assert not found.weights.any()
    assert not found.mask.any()
    assert found.report["tokens"] == 0
    silent = {"is_weight_mean", "clipped_frac", "ess_after", "weight_min", "masked_frac", "broken_frac", "ratio_mean"}
    assert {name: found.report[name] for name in silent} == dict.fromkeys(silent)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_arrays_without_elements_come_back_as_they_are(shape: tuple[int, int], library: Any) -> None:
    nothing = library(np.zeros(shape))
    found = correct(EVERYTHING, nothing, nothing, advantages=nothing)
    assert tuple(found.weights.shape) == tuple(found.mask.shape) == shape
    assert found.report["tokens"] == 0


# --- Layouts and types ---


def test_lists_come_back_as_lists_of_their_lengths() -> None:
    lengths = [3, 0, 5]
    sides = [[torch.tensor(side[row, :n]) for row, n in enumerate(lengths)] for side in (ROLLOUT, TRAINER)]
    found = correct(CorrectionConfig(is_level="geometric"), *sides)
    assert [len(row) for row in found.weights] == [len(row) for row in found.mask] == lengths
    assert all(isinstance(row, torch.Tensor) and row.dtype == torch.float64 for row in found.weights)
    assert [row.dtype for row in found.mask] == [torch.bool] * 3
    assert found.report["sequences"] == 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_the_mask_keeps_its_type(dtype: torch.dtype) -> None:
    found = correct(
        CorrectionConfig(rs_level="token", rs_upper=1.0),
        *map(torch.tensor, (ROLLOUT, TRAINER)),
        torch.tensor(MASK).to(dtype),
    )
    assert found.mask.dtype == found.denominator_mask.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_widened_before_it_is_summed(dtype: torch.dtype) -> None:
    halves = [torch.tensor(side).to(dtype) for side in (ROLLOUT, TRAINER)]
    config = CorrectionConfig(is_level="sequence", is_mode="clip", is_lower=0.1)
    found = correct(config, *halves, torch.tensor(MASK))
    assert found.weights.dtype == torch.float32
    exact = correct(config, *(half.double() for half in halves), torch.tensor(MASK))
    assert found.weights.double() == pytest.approx(exact.weights, rel=1e-5)


@pytest.mark.parametrize("advantages", [ADVANTAGES[:, 0], ADVANTAGES[:, :1], list(ADVANTAGES[:, 0])])
def test_advantages_per_sequence_stand_for_all_its_tokens(advantages: Any) -> None:
    per_token = np.repeat(ADVANTAGES[:, :1], MASK.shape[1], axis=1)
    first, second = (correct(EVERYTHING, ROLLOUT, TRAINER, MASK, advantages=given) for given in (advantages, per_token))
    assert (first.mask == second.mask).all()
    assert first.report["masked_advantage_frac"] == pytest.approx(second.report["masked_advantage_frac"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ROLLOUT, TRAINER[:, :-1], MASK), r"trainer_logprobs has shape \[5, 6\], rollout_logprobs: \[5, 7\]"),
        ((ROLLOUT, TRAINER, MASK[:-1]), r"mask has shape \[4, 7\], rollout_logprobs: \[5, 7\]"),
        ((ROLLOUT[0], TRAINER[0], None), r"rollout_logprobs has shape \[7\]; pass"),
        ((list(ROLLOUT), TRAINER, None), "trainer_logprobs is a padded array, rollout_logprobs: a list of sequences"),
        ((list(ROLLOUT), list(TRAINER[:-1]), None), "trainer_logprobs has 4 sequences, rollout_logprobs: 5"),
        (
            ([ROLLOUT[0], ROLLOUT[1]], [TRAINER[0], TRAINER[1][:3]], None),
            r"trainer_logprobs: sequence 1 has shape \[3\], rollout_logprobs: \[7\]",
        ),
        (([ROLLOUT], [TRAINER], None), r"item 0 has shape \[5, 7\]; pass 1-D items in a list"),
        (([], [], None), "an empty list"),
        (
            (torch.tensor(ROLLOUT), TRAINER, None),
            "cannot be mixed: rollout_logprobs is of torch and trainer_logprobs is of",
        ),
        ((np.array([["a"]]), TRAINER, None), "pass a numpy array or torch tensor of numbers"),
    ],
)
def test_what_does_not_fit_is_refused_by_shape(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        correct(CorrectionConfig(is_level="token"), *arguments)


def test_advantages_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"advantages has shape \[5, 3\], rollout_logprobs: \[5, 7\]"):
        correct(EVERYTHING, ROLLOUT, TRAINER, MASK, advantages=ADVANTAGES[:, :3])
    with pytest.raises(InputError, match=r"advantages: the correction \(.*rs_by_advantage=True"):
        correct(EVERYTHING.replace(rs_level="token", rs_by_advantage=True), ROLLOUT, TRAINER, MASK)


# --- What a trainer relies on ---


def test_weights_and_masks_carry_no_gradient() -> None:
    rollout, trainer = (torch.tensor(side, requires_grad=True) for side in (ROLLOUT, TRAINER))
    found = correct(EVERYTHING, rollout, trainer, torch.tensor(MASK), advantages=trainer * 1)
    assert not found.weights.requires_grad
    assert not found.mask.requires_grad
    assert found.report["tokens"] == MASK.sum()


def test_no_step_waits_for_a_device() -> None:
    """A tensor on the device `meta` has no values: whatever asked for one would raise."""
    tensor = torch.empty((3, 4), device="meta")
    measures = ("ratio", "k2", "k3", "binary_kl", "prob_diff")
    for level, (measure, rs_level) in zip(cycle(LEVELS), product(measures, (*LEVELS, "max"))):
        config = EVERYTHING.replace(is_level=level, rs_level=rs_level, rs_measure=measure)
        found = correct(config, tensor, tensor, tensor != 0, advantages=tensor)
        found.deferred()
        assert found.weights.is_meta
        assert repr(found.report) == "Report(not read yet)"


def test_after_it_was_deferred_the_inputs_may_change() -> None:
    tensors = [torch.tensor(side) for side in (ROLLOUT, TRAINER, MASK)]
    expected = dict(correct(CorrectionConfig(is_level="token"), *copy.deepcopy(tensors)).report)
    found = correct(CorrectionConfig(is_level="token"), *tensors)
    read = found.deferred()
    for tensor in tensors:
        tensor.zero_()
    assert read()["report"] == expected


def test_it_unpacks_and_is_acknowledged_with_its_configuration() -> None:
    found = correct(EVERYTHING, ROLLOUT, TRAINER, MASK, advantages=ADVANTAGES)
    weights, mask, report = found
    assert weights is found.weights
    assert mask is found.mask
    assert found.deferred()() == {
        "config": EVERYTHING.to_dict(),
        "fingerprint": EVERYTHING.fingerprint(),
        "report": dict(report),
    }


# --- The report ---


def test_the_report_counts_what_happened() -> None:
    rollout = np.log(np.full((2, 4), 0.2))
    trainer = rollout + np.log(np.array([[4.0, 0.25, 1.0, 0.5], [1.0, 1.0, 0.9, 0.9]]))
    advantages = np.array([1.0, -2.0])
    config = CorrectionConfig(
        is_level="token", is_mode="clip", is_lower=0.4, is_upper=2.0, rs_level="token", rs_upper=3.0
    )
    report = correct(config, rollout, trainer, advantages=advantages).report  # 4.0 is dropped, 0.25 raised
    weights = np.array([0.0, 0.4, 1.0, 0.5, 1.0, 1.0, 0.9, 0.9])
    ratios = np.array([4.0, 0.25, 1.0, 0.5, 1.0, 1.0, 0.9, 0.9])
    expected = {
        "tokens": 8,
        "sequences": 2,
        "is_weight_mean": weights.mean(),
        "weight_min": 0.4,
        "weight_max": 1.0,
        "ratio_mean": ratios.mean(),
        "ratio_min": 0.25,
        "ratio_max": 4.0,
        "ess_before": ratios.sum() ** 2 / (8 * (ratios**2).sum()),
        "ess_after": weights.sum() ** 2 / (8 * (weights**2).sum()),
        "clipped_frac": 2 / 8,
        "clipped_seq_frac": 1 / 2,
        "masked_frac": 1 / 8,
        "masked_seq_frac": 0.0,
        "masked_advantage_frac": 1 / 12,
        "is_above_frac": 1 / 8,
        "is_below_frac": 1 / 8,
        "rs_above_frac": 1 / 8,
        "rs_below_frac": 0.0,
        "broken_tokens": 0,
        "normalizer": 1.0,
    }
    assert {name: report[name] for name in expected} == pytest.approx(expected)


def test_the_share_of_advantage_is_unknown_without_and_when_it_is_no_number() -> None:
    config = CorrectionConfig(rs_level="token", rs_upper=1.0)
    assert correct(config, ROLLOUT, TRAINER, MASK).report["masked_advantage_frac"] is None
    spoiled = np.where(np.arange(7) == 0, NAN, ADVANTAGES)
    assert correct(config, ROLLOUT, TRAINER, MASK, advantages=spoiled).report["masked_advantage_frac"] is None
