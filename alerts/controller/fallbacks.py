"""Which corrections are tried, in which order: the configured one, and what else may help where that would drop too much."""

from __future__ import annotations

from typing import Final

from logprobe.collectors.correction import CorrectionConfig

_TRUNCATED: Final = CorrectionConfig(is_level="token", is_upper=2.0)  # TIS: bounds weights, and drops nothing
_SEQUENCE: Final = CorrectionConfig(
    is_level="sequence", is_upper=2.0
)  # the same of whole sequences; drops nothing either


def candidates(config: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """`config` first, then truncation, then `config` with bounds twice as wide, then the sequence level; none of them twice."""
    found = (config, _TRUNCATED, _wider(config), _SEQUENCE)
    return tuple({each.fingerprint(): each for each in found}.values())


def _wider(config: CorrectionConfig) -> CorrectionConfig:
    """Bounds of ratios are squared, which doubles them as log-ratios; bounds of divergences and differences are doubled."""
    of_ratio = config.rs_measure == "ratio"
    return config.replace(
        is_lower=_squared(config.is_lower),
        is_upper=_squared(config.is_upper),
        rs_lower=_squared(config.rs_lower) if of_ratio else _doubled(config.rs_lower),
        rs_upper=_squared(config.rs_upper) if of_ratio else _doubled(config.rs_upper),
        veto=_squared(config.veto),
    )


def _squared(bound: float | None) -> float | None:
    return None if bound is None else bound**2


def _doubled(bound: float | None) -> float | None:
    return None if bound is None else 2 * bound
