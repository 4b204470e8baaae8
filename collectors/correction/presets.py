"""Corrections by name: the presets of training frameworks.

If a framework has no default bound, the preset uses the bound of its documentation or example. `docs/correction.md`
lists the presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.errors import ConfigurationError


class Preset(NamedTuple):
    """One correction and its source."""

    config: CorrectionConfig
    source: str


def preset(name: str, **changes: Any) -> CorrectionConfig:
    """Return a configuration of `PRESETS` by name, with the values of `changes`.

    >>> preset("trl/token_truncate", is_upper=5).is_upper
    5.0

    Raises:
        ConfigurationError: no preset has that name, or a change is invalid.
    """
    if name not in PRESETS:
        near = ", ".join(get_close_matches(name, PRESETS)) or ", ".join(PRESETS)
        raise ConfigurationError(f"there is no preset {name!r}; did you mean one of these: {near}?")
    return PRESETS[name].config.replace(**changes)


def _trl(level: str, mode: str) -> CorrectionConfig:
    return CorrectionConfig.from_dict({"is_level": level, "is_mode": mode, "is_upper": 3.0})


_VERL: Final = "verl/trainer/config/algorithm.py, RolloutCorrectionConfig"
_MS_SWIFT: Final = "swift/trainers/rlhf_trainer/grpo_trainer.py"
_SLIME: Final = "examples/train_infer_mismatch_helper"
_TRL: Final = "trl/trainer/grpo_config.py, vllm_importance_sampling_*"
_OPENRLHF: Final = "openrlhf/models/loss.py, vllm_is_correction_type"
_SKYRL: Final = "SkyRL off_policy_correction"

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "tis": Preset(CorrectionConfig(is_level="token"), "truncated importance sampling, bound 2"),
        "mis": Preset(
            CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, denominator="renormalize"),
            "masked importance sampling, bounds of slime's example",
        ),
        "sequence-mis": Preset(
            CorrectionConfig(
                is_level="geometric", is_mode="mask", is_lower=0.99, is_upper=1.01, denominator="renormalize"
            ),
            "masked importance sampling by geometric ratio, bounds of SkyRL's examples",
        ),
        "icepop": Preset(
            CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0, normalize_by="weights"),
            "IcePop article, α = 0.5, β = 5",
        ),
        "verl/token-tis": Preset(CorrectionConfig(is_level="token"), _VERL),
        "verl/sequence-tis": Preset(CorrectionConfig(is_level="sequence"), _VERL),
        "verl/sequence-tis-rs": Preset(
            CorrectionConfig(
                is_level="sequence", rs_level="sequence", rs_lower=0.5, rs_upper=2.0, denominator="renormalize"
            ),
            _VERL,
        ),
        "verl/geometric-rs": Preset(
            CorrectionConfig(
                rs_level="geometric",
                rs_lower=1 / 1.001,  # verl holds −d against the bounds' logarithms
                rs_upper=1 / 0.999,
                clamp="token",
                denominator="renormalize",
            ),
            _VERL,
        ),
        "verl/k3-rs": Preset(
            CorrectionConfig(rs_level="geometric", rs_measure="k3", rs_upper=0.01, denominator="renormalize"), _VERL
        ),
        "ms-swift/token_truncate": Preset(CorrectionConfig(is_level="token"), _MS_SWIFT),
        "ms-swift/token_mask": Preset(CorrectionConfig(is_level="token", is_mode="mask"), _MS_SWIFT),
        "ms-swift/sequence_truncate": Preset(CorrectionConfig(is_level="geometric", clamp="token"), _MS_SWIFT),
        "ms-swift/sequence_mask": Preset(  # token weights in sequences whose geometric ratio is within the threshold
            CorrectionConfig(is_level="token", is_upper=None, rs_level="geometric", rs_upper=2.0, clamp="token"),
            _MS_SWIFT,
        ),
        "slime/tis": Preset(CorrectionConfig(is_level="token"), "slime --use-tis, tis_clip 2"),
        "slime/tis-rs": Preset(
            CorrectionConfig(
                is_level="token",
                rs_level="token",
                rs_lower=0.5,
                rs_upper=2.0,
                veto=1e-4,
                normalize=True,
                denominator="renormalize",
            ),
            _SLIME,
        ),
        "slime/geometric-mis": Preset(
            CorrectionConfig(
                is_level="geometric", is_mode="mask", is_lower=0.99, is_upper=1.01, veto=1e-4, denominator="renormalize"
            ),
            _SLIME,
        ),
        "trl/token_truncate": Preset(_trl("token", "truncate"), _TRL),
        "trl/token_mask": Preset(_trl("token", "mask"), _TRL),
        "trl/sequence_truncate": Preset(_trl("sequence", "truncate"), _TRL),
        "trl/sequence_mask": Preset(_trl("sequence", "mask"), _TRL),
        "pipelinerl/reinforce": Preset(
            CorrectionConfig(is_level="token", is_upper=1.2), "pipelinerl/finetune/rl; pair total, 1 + epsilon_high"
        ),
        "nemo-rl/seq-mask-tis": Preset(
            CorrectionConfig(is_level="token", is_upper=None, rs_level="geometric", rs_lower=0.999, rs_upper=1.002),
            "NeMo-RL truncated_importance_sampling_type",
        ),
        "prime-rl/dppo": Preset(
            CorrectionConfig(
                rs_level="token", rs_measure="prob_diff", rs_lower=-0.2, rs_upper=0.2, rs_by_advantage=True
            ),
            "prime-rl default loss; pair total",
        ),
        "openrlhf/tis": Preset(
            CorrectionConfig(is_level="token", is_mode="clip", is_lower=0.5, is_upper=5.0), _OPENRLHF
        ),
        "openrlhf/icepop": Preset(
            CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0), _OPENRLHF
        ),
        "openrlhf/seq-mask-tis": Preset(
            CorrectionConfig(is_level="token", is_upper=None, rs_level="geometric", rs_lower=0.5, rs_upper=5.0),
            _OPENRLHF,
        ),
        "skyrl/geometric-mask": Preset(
            CorrectionConfig(rs_level="geometric", rs_lower=0.99, rs_upper=1.01, denominator="renormalize"), _SKYRL
        ),
        "skyrl/product-mask": Preset(
            CorrectionConfig(rs_level="sequence", rs_lower=0.5, rs_upper=2.0, denominator="renormalize"), _SKYRL
        ),
        "skyrl/outlier": Preset(
            CorrectionConfig(rs_level="max", rs_lower=0.2, rs_upper=5.0, denominator="renormalize"), _SKYRL
        ),
        "areal/token-mask": Preset(
            CorrectionConfig(is_level="token", is_mode="mask", is_upper=5.0, denominator="renormalize"),
            "AReaL, behaviour importance weight cap 5",
        ),
        "open-instruct/clamp": Preset(CorrectionConfig(is_level="token"), "open-instruct, clamp 2"),
    }
)
