"""The library computes what the frameworks compute, to 1e-6: weights × mask, the changed mask, and clip statistics."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.correction.presets import ms_swift

GOLDEN = json.loads(gzip.decompress((Path(__file__).parents[2] / "data" / "peer_views.json.gz").read_bytes()))
CASES = GOLDEN["cases"]
SMALL = GOLDEN["modes"]  # one batch of three sequences, the last of them without a token; references have six decimals
SMALL_TOLERANCE = 6e-7


def config(**fields: Any) -> CorrectionConfig:
    return CorrectionConfig(**fields)


def verl_rejection(criterion: str, threshold: str) -> CorrectionConfig:
    level, _, estimator = criterion.rpartition("_")
    levels = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric", "seq_max": "max"}
    lower, _, upper = threshold.rpartition("_")
    if estimator == "k1":  # verl holds −d against the logarithms of the bounds
        bounds = {"rs_lower": 1 / float(upper), "rs_upper": 1 / float(lower)}
    else:
        bounds = {"rs_measure": estimator, "rs_upper": float(upper)}
    return config(rs_level=levels[level], clamp="token", **bounds)


def slime(args: dict[str, Any]) -> CorrectionConfig:
    rejection = {}
    if args["use_rs"]:
        rejection = {
            "rs_level": args["rs_level"],
            "rs_lower": args["rs_lower_bound"],
            "rs_upper": args["rs_upper_bound"],
            "veto": args["rs_veto_threshold"],
        }
    return config(
        is_level=args["tis_level"],
        is_mode=args["tis_mode"],
        is_lower=args["tis_lower_bound"],
        is_upper=args["tis_upper_bound"],
        normalize=args["tis_batch_normalize"],
        **rejection,
    )


def asked(report: str, reference: Any) -> CorrectionConfig | None:
    """The configuration a report of the reference belongs to; None: it is of no correction."""
    framework, *rest = report.split("/")
    if framework == "slime":
        return slime(reference["args"])
    if report.startswith("verl/is/"):
        return config(is_level=rest[1], is_upper=float(rest[2]), normalize=rest[3] == "bn=True")
    if report.startswith("verl/rs/"):
        return verl_rejection(rest[1], rest[2])
    if report.startswith("swift/is/"):
        return ms_swift(rest[1], float(rest[2]))
    if framework == "trl" and "clip_max" in report:
        level, mode = rest[0].split("_")
        return config(is_level=level, is_mode=mode, is_upper=float(rest[1].partition("=")[2]))
    return None


def expected_factors(report: str, reference: Any, mask: np.ndarray) -> np.ndarray:
    """What multiplies the token loss."""
    weights = np.array(reference.get("weights", reference.get("ratio", 1.0)))
    return weights * np.array(reference.get("mask", mask)) * mask


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_correction_of_the_reference(case: dict[str, Any], library: Any) -> None:
    given = {name: library(values) for name, values in case["inputs"].items()}
    mask, compared = np.array(case["inputs"]["mask"]), 0
    for report, reference in case["reference"].items():
        wanted = asked(report, reference)
        if wanted is None:
            continue
        found = correct(
            wanted,
            given["rollout_logprobs"],
            given["trainer_logprobs"],
            given["mask"],
            advantages=given["advantages"],
        )
        factors = np.asarray(found.weights * found.mask)
        # TRL does not clamp: below e^−20
        assert factors == pytest.approx(expected_factors(report, reference, mask), rel=1e-6, abs=1e-8), report
        if isinstance(reference, dict) and "mask" in reference:
            assert (np.asarray(found.mask) == np.array(reference["mask"])).all(), report
        compared += 1
    assert compared > 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reports_of_token_weights_agree(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    for mode in ("token_truncate", "token_mask"):
        for threshold in ("1.1", "2.0"):
            wanted = case["reference"][f"swift/is/{mode}/{threshold}"]["metrics"]
            found = correct(
                ms_swift(mode, float(threshold)),
                *(np.array(inputs[name]) for name in ("rollout_logprobs", "trainer_logprobs", "mask")),
            ).report
            assert found["is_weight_mean"] == pytest.approx(wanted["is_weight_mean"], rel=1e-6)
            assert found["clipped_frac"] == pytest.approx(wanted["clipped_frac"], rel=1e-6)


GEOMETRIC_IS = {"is_level": "token", "is_upper": None, "rs_level": "geometric"}  # seq-mask-tis
SMALL_MODES: dict[str, CorrectionConfig] = {
    "verl/IS token TIS 2.0": config(is_level="token"),
    "verl/IS token icepop 0.5_2.0": config(is_level="token", is_mode="mask", is_lower=0.5),
    "verl/IS sequence TIS 2.0": config(is_level="sequence"),
    "verl/IS sequence icepop 0.5_2.0": config(is_level="sequence", is_mode="mask", is_lower=0.5),
    "verl/IS token TIS 2.0 + batch_normalize": config(is_level="token", normalize=True),
    "verl/IS sequence TIS 2.0 + batch_normalize": config(is_level="sequence", normalize=True),
    **{
        name: verl_rejection(*name.removeprefix("verl/RS ").split(" "))
        for name in SMALL["modes"]
        if name.startswith("verl/RS ")
    },
    **{f"ms-swift/{mode} 2.0": ms_swift(mode) for mode in ("token_truncate", "token_mask")},
    **{f"ms-swift/{mode} 2.0": ms_swift(mode) for mode in ("sequence_truncate", "sequence_mask")},
    "slime mis/token truncate": config(is_level="token", is_lower=0.5),
    "slime mis/token clip": config(is_level="token", is_mode="clip", is_lower=0.5),
    "slime mis/token mask": config(is_level="token", is_mode="mask", is_lower=0.5),
    "slime mis/sequence truncate": config(is_level="sequence"),
    "slime mis/geometric truncate": config(is_level="geometric"),
    "slime mis/token truncate+RS token+veto1e-4": config(
        is_level="token", rs_level="token", rs_lower=0.5, rs_upper=2, veto=1e-4
    ),
    "slime mis/token truncate + batch_normalize": config(is_level="token", normalize=True),
    "TRL/token_truncate min=None max=3.0": config(is_level="token", is_upper=3),
    "TRL/token_mask min=None max=3.0": config(is_level="token", is_mode="mask", is_upper=3),
    "TRL/sequence_truncate min=None max=3.0": config(is_level="sequence", is_upper=3),
    "TRL/sequence_mask min=None max=3.0": config(is_level="sequence", is_mode="mask", is_upper=3),
    "TRL/token_mask min=0.5 max=2.0": config(is_level="token", is_mode="mask", is_lower=0.5),
    "TRL/sequence_mask min=0.5 max=2.0": config(is_level="sequence", is_mode="mask", is_lower=0.5),
    "SkyRL/token": config(is_level="token"),
    "SkyRL/sequence": config(is_level="sequence"),
    "SkyRL/geometric mask": config(rs_level="geometric", rs_lower=0.99, rs_upper=1.01),
    "SkyRL/product mask": config(rs_level="sequence", rs_lower=0.5, rs_upper=2),
    "SkyRL/token_mask .5-2": config(rs_level="token", rs_lower=0.5, rs_upper=2),
    "SkyRL/outlier .2-5": config(rs_level="max", rs_lower=0.2, rs_upper=5),
    "AReaL/token ratio mask 5": config(is_level="token", is_mode="mask", is_upper=5),
    "AReaL/token ratio mask .5-2": config(is_level="token", is_mode="mask", is_lower=0.5),
    "AReaL/token clamp .5-2": config(is_level="token", is_mode="clip", is_lower=0.5),
    "AReaL/sequence ratio mean mask .5-2": config(is_level="geometric", is_mode="mask", is_lower=0.5),
    "AReaL/token kl_k2 mask .1": config(
        is_level="token", is_upper=None, rs_level="token", rs_measure="k2", rs_upper=0.1
    ),
    "AReaL/sequence kl_k2 mean mask .5": config(**GEOMETRIC_IS, rs_measure="k2", rs_upper=0.5),
    "AReaL/token binary_kl .1": config(
        is_level="token", is_upper=None, rs_level="token", rs_measure="binary_kl", rs_upper=0.1
    ),
    "ROLL/token ub1.2 filter .8-1.2": config(
        is_level="token", is_upper=1.2, rs_level="token", rs_lower=0.8, rs_upper=1.2
    ),
    "ROLL/geometric ub1.2 filter .8-1.2": config(
        is_level="geometric", is_upper=1.2, rs_level="geometric", rs_lower=0.8, rs_upper=1.2
    ),
    "ROLL/sequence ub1.2 filter .8-1.2": config(
        is_level="sequence", is_upper=1.2, rs_level="sequence", rs_lower=0.8, rs_upper=1.2
    ),
    "open-instruct/clamp2": config(is_level="token"),
    "open-instruct/clamp2 mask .5-2": config(is_level="token", rs_level="token", rs_lower=0.5, rs_upper=2),
    "open-instruct/seq clamp2 mask .5-2": config(is_level="geometric", rs_level="geometric", rs_lower=0.5, rs_upper=2),
    "OpenRLHF/tis .5-5": config(is_level="token", is_mode="clip", is_lower=0.5, is_upper=5),
    "OpenRLHF/icepop .5-5": config(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5),
    "OpenRLHF/seq-mask-tis .5-5": config(**GEOMETRIC_IS, rs_lower=0.5, rs_upper=5),
    "prime-rl/dppo keep-mask (A=+1,-1,0)": config(
        rs_level="token", rs_measure="prob_diff", rs_lower=-0.2, rs_upper=0.2, rs_by_advantage=True
    ),
}


def test_every_mode_of_the_small_batch_has_a_configuration() -> None:
    assert SMALL_MODES.keys() == SMALL["modes"].keys()


@pytest.mark.parametrize("mode", SMALL["modes"])
def test_every_mode_of_the_small_batch(mode: str) -> None:
    inputs, reference = SMALL["input"], SMALL["modes"][mode]
    mask = np.array(inputs["mask"], float)
    found = correct(
        SMALL_MODES[mode],
        np.array(inputs["rollout_logprobs"]),
        np.array(inputs["train_logprobs"]),
        mask,
        advantages=np.array(inputs["advantages"]),
    )
    if "weights" in reference:
        expected = np.array(reference["weights"]) * np.array(reference.get("mask", mask)) * mask
        assert found.weights * found.mask == pytest.approx(expected, abs=SMALL_TOLERANCE)
    if "mask" in reference and "icepop" not in mode:  # verl's IcePop sets weights to 0 and keeps the mask
        assert (found.mask == np.array(reference["mask"])).all()
