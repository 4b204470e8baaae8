"""Laws of corrections on generated batches, with broken tokens: whatever the formulas are, which `test_correction_definition.py` has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.collectors.correction import CorrectionConfig, Report, correct

LEVELS = st.sampled_from(["token", "sequence", "geometric"])
LOGPROBS = st.one_of(st.floats(-25, 0), st.floats(-3, 0), st.just(-1.0))
BROKEN = st.sampled_from([float("nan"), float("inf"), float("-inf"), -9999.0, 1.0, 0.5])
PROFILE = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def batches(draw: Any) -> dict[str, np.ndarray]:
    """Rollout and trainer log-probs, mask and advantages [batch, time]."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 6)))
    size = shape[0] * shape[1]
    values = st.one_of(LOGPROBS, LOGPROBS, LOGPROBS, BROKEN)

    def array(elements: Any) -> np.ndarray:
        return np.array(draw(st.lists(elements, min_size=size, max_size=size))).reshape(shape)

    return {
        "rollout": array(values).astype(float),
        "trainer": array(values).astype(float),
        "mask": array(st.booleans()),
        "advantages": array(st.floats(-2, 2)).astype(float),
    }


@st.composite
def configs(draw: Any) -> CorrectionConfig:
    bounds = sorted((draw(st.floats(0.1, 3)), draw(st.floats(0.1, 3))))
    level = draw(st.none() | LEVELS)
    rejection = draw(st.none() | LEVELS | st.just("max"))
    return CorrectionConfig(
        is_level=level,
        is_mode=draw(st.sampled_from(["truncate", "clip", "mask"])),
        is_lower=bounds[0],
        is_upper=bounds[1],
        rs_level=rejection,
        rs_lower=draw(st.floats(0, 0.9)),
        rs_upper=draw(st.floats(1, 4)),
        veto=draw(st.none() | st.just(1e-3)),
        normalize=level is not None and draw(st.booleans()),
        clamp=draw(st.sampled_from(["level", "token"])),
    )


def applied(config: CorrectionConfig, batch: dict[str, Any]) -> Any:
    return correct(config, batch["rollout"], batch["trainer"], batch["mask"], advantages=batch["advantages"])


def close(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


def numbers(report: Report) -> dict[str, float]:
    """With NaN for what cannot be measured."""
    return {name: float("nan") if value is None else value for name, value in report.items()}


@PROFILE
@given(configs(), batches())
def test_torch_and_numpy_agree(config: CorrectionConfig, batch: dict[str, np.ndarray]) -> None:
    first = applied(config, batch)
    second = applied(config, {name: torch.tensor(values) for name, values in batch.items()})
    assert second.weights.numpy() == close(first.weights)
    assert (second.mask.numpy() == first.mask).all()
    assert numbers(second.report) == close(numbers(first.report))


@PROFILE
@given(configs(), batches())
def test_lists_and_padding_agree(config: CorrectionConfig, batch: dict[str, np.ndarray]) -> None:
    time = batch["mask"].shape[1]
    lengths = [(time - row) % (time + 1) for row in range(len(batch["mask"]))]
    inside = np.arange(time) < np.array(lengths)[:, None]
    padded = applied(config, batch | {"mask": batch["mask"] & inside})
    ragged = applied(
        config, {name: [row[:n] for row, n in zip(values, lengths, strict=True)] for name, values in batch.items()}
    )
    for row, n in enumerate(lengths):
        assert ragged.weights[row] == close(padded.weights[row, :n])
        assert (ragged.mask[row] == padded.mask[row, :n]).all()
    assert numbers(ragged.report) == close(numbers(padded.report))


@PROFILE
@given(configs(), batches())
def test_broken_tokens_never_carry_weight(config: CorrectionConfig, batch: dict[str, np.ndarray]) -> None:
    rollout, trainer = batch["rollout"], batch["trainer"]
    broken = ~np.isfinite(rollout) | ~np.isfinite(trainer) | (rollout > 1e-6) | (trainer > 1e-6)
    broken |= (rollout <= -9999) | (trainer <= -9999) | ((rollout == 0) & (trainer < -1))
    found = applied(config, batch)
    assert (found.weights[broken] == 0).all()
    assert not found.mask[broken].any()
    assert found.report["broken_tokens"] == (broken & batch["mask"]).sum()


@PROFILE
@given(configs(), batches())
def test_micro_batches_merge_into_the_report_of_the_whole(
    config: CorrectionConfig, batch: dict[str, np.ndarray]
) -> None:
    config = config.replace(normalize=False)
    parts = [applied(config, {k: v[row : row + 1] for k, v in batch.items()}) for row in range(len(batch["mask"]))]
    whole = applied(config, batch)
    assert np.concatenate([part.weights for part in parts]) == close(whole.weights)
    merged = Report.merge(*(part.report for part in parts))
    assert numbers(merged) == close(numbers(whole.report))
