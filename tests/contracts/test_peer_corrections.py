"""Each preset does to sound tokens what the framework's view says that framework does: two separate writings of one formula.

The views are what frameworks computed (`test_peers.py`); the presets of frameworks without one are compared with that here.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from correction_batches import batch

from logprobe.collectors.correction import correct
from logprobe.collectors.correction.presets import PRESETS
from logprobe.monitor import peers

VERL_RS = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
SLIME = {"use_tis": True, "use_rs": True, "rs_veto_threshold": 1e-4}
SEQ_MASK = "seq-mask-tis"
NEMO = {"truncated_importance_sampling_ratio_min": 0.999, "truncated_importance_sampling_ratio": 1.002}

# preset → framework and its own options
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "verl/token-tis": ("verl", {"rollout_is": "token"}),
    "verl/sequence-tis": ("verl", {"rollout_is": "sequence"}),
    "verl/sequence-tis-rs": ("verl", {"rollout_is": "sequence", **VERL_RS}),
    "verl/geometric-rs": ("verl", {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}),
    "verl/k3-rs": ("verl", {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}),
    **{
        f"ms-swift/{mode}": ("ms-swift", {"rollout_importance_sampling_mode": mode})
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
    "slime/tis": ("slime", {"use_tis": True, "custom_tis_function": False}),
    "slime/tis-rs": ("slime", {**SLIME, "tis_batch_normalize": True}),
    "slime/geometric-mis": (
        "slime",
        {
            **SLIME,
            "tis_level": "geometric",
            "tis_mode": "mask",
            "tis_lower_bound": 0.99,
            "tis_upper_bound": 1.01,
        },
    ),
    **{
        f"trl/{mode}": ("trl", {"vllm_importance_sampling_mode": mode})
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
    "nemo-rl/seq-mask-tis": ("nemo-rl", {"truncated_importance_sampling_type": SEQ_MASK, **NEMO}),
    "prime-rl/dppo": ("prime-rl", {}),
    **{
        f"openrlhf/{kind}": ("openrlhf", {"vllm_is_correction_type": kind})
        for kind in ("tis", "icepop", "seq-mask-tis")
    },
}

# Of a framework without a view: preset → the mode of what it computed for one batch, to six decimals
RECORDED = {
    "skyrl/geometric-mask": "SkyRL/geometric mask",
    "skyrl/product-mask": "SkyRL/product mask",
    "skyrl/outlier": "SkyRL/outlier .2-5",
    "areal/token-mask": "AReaL/token ratio mask 5",
    "open-instruct/clamp": "open-instruct/clamp2",
}
OWN = {"tis", "mis", "sequence-mis", "icepop"}  # of no framework
VIEWS = Path(__file__).parent.parent / "data" / "peer_views.json.gz"


def sound_batch(spread: float) -> tuple[np.ndarray, ...]:
    """[sequence, time]; so many sequences that some lie within a few percent of each bound, on both of its sides."""
    rollout, trainer, mask, advantages = batch(seed=11, sequences=300, time=9, spread=spread)
    rollout -= np.random.default_rng(12).uniform(0, 2 * spread, (300, 1))  # whole sequences are likelier to the trainer
    return tuple(values[:-1] for values in (rollout, trainer, mask, advantages))  # each sequence has a token


def test_every_preset_of_a_framework_is_compared() -> None:
    assert PRESETS.keys() - OPTIONS.keys() - RECORDED.keys() - OWN == {
        "pipelinerl/reinforce"  # its view has no weights: they are part of its loss
    }


@pytest.mark.parametrize("name", RECORDED)
def test_a_preset_is_what_the_framework_computed(name: str) -> None:
    recorded = json.loads(gzip.decompress(VIEWS.read_bytes()))["modes"]
    given, computed = recorded["input"], recorded["modes"][RECORDED[name]]
    mask = np.array(given["mask"], float)
    sides = (np.array(given[side]) for side in ("rollout_logprobs", "train_logprobs"))
    found = correct(PRESETS[name].config, *sides, mask, advantages=np.array(given["advantages"]))
    if "weights" in computed:
        expected = np.array(computed["weights"]) * np.array(computed.get("mask", mask)) * mask
        assert found.weights * found.mask == pytest.approx(expected, abs=6e-7)
    if "mask" in computed:
        assert (found.mask == np.array(computed["mask"])).all()


@pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_preset_is_what_the_framework_does(name: str, spread: float) -> None:
    rollout, trainer, mask, advantages = sound_batch(spread)
    peer, options = OPTIONS[name]
    theirs = peers.correction(peer, rollout, trainer, mask, advantages=advantages, **options)
    ours = correct(PRESETS[name].config, rollout, trainer, mask, advantages=advantages)
    assert ours.weights * ours.mask == pytest.approx(theirs.weights_BT * theirs.mask_BT * mask, rel=1e-9, abs=1e-12)


def test_spreads_make_the_bounds_matter() -> None:
    untouched = []
    for name in OPTIONS:
        shares = []
        for spread in (0.1, 1.0):
            rollout, trainer, mask, advantages = sound_batch(spread)
            shares.append(
                correct(PRESETS[name].config, rollout, trainer, mask, advantages=advantages).report["clipped_frac"]
            )
        if not any(shares):
            untouched.append(name)
    assert untouched == []
