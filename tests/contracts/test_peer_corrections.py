"""Each preset does to sound tokens what the framework's view says that framework does: two separate writings of one formula."""

from __future__ import annotations

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


def sound_batch(spread: float) -> tuple[np.ndarray, ...]:
    rollout, trainer, mask, advantages = batch(seed=11, sequences=12, time=9, spread=spread)
    rollout[:4] -= 2 * spread  # some whole sequences are likelier to the trainer
    return tuple(values[:-1] for values in (rollout, trainer, mask, advantages))  # each sequence has a token


def test_every_preset_of_a_framework_with_a_view_is_compared() -> None:
    assert {name for name in PRESETS if name.partition("/")[0] in peers.PEERS} - OPTIONS.keys() == {
        "pipelinerl/reinforce"  # its view has no weights: they are part of its loss
    }


@pytest.mark.parametrize("spread", [1e-3, 0.05, 1.0])
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
        for spread in (0.05, 1.0):
            rollout, trainer, mask, advantages = sound_batch(spread)
            shares.append(
                correct(PRESETS[name].config, rollout, trainer, mask, advantages=advantages).report["clipped_frac"]
            )
        if not any(shares):
            untouched.append(name)
    assert untouched == []
