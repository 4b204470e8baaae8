"""`CorrectionConfig`: one correction as plain data, validated on construction and serializable as JSON."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self, get_args

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.recorder.documents import canonical_json, fingerprint

Level = Literal["token", "sequence", "geometric"]
RejectionLevel = Literal["token", "sequence", "geometric", "max"]
Mode = Literal["truncate", "clip", "mask"]
Measure = Literal["ratio", "k2", "k3", "binary_kl", "prob_diff"]
Denominator = Literal["keep", "renormalize"]


NormalizeBy = Literal["ratios", "weights"]
Clamp = Literal["level", "token"]

# Values of fields that are not numbers.
_CHOICES: Final[Mapping[str, tuple[Any, ...]]] = {
    "is_level": (None, *get_args(Level)),
    "is_mode": get_args(Mode),
    "rs_level": (None, *get_args(RejectionLevel)),
    "rs_measure": get_args(Measure),
    "rs_by_advantage": (True, False),
    "normalize": (True, False),
    "normalize_by": get_args(NormalizeBy),
    "denominator": get_args(Denominator),
    "clamp": get_args(Clamp),
}


@dataclass(frozen=True, kw_only=True)
class CorrectionConfig:
    """Configuration of a correction. ρ is the importance ratio ``exp(trainer − rollout)`` at the given level.

    Levels: ``token`` one ρ per token, ``sequence`` the product over a sequence's tokens, ``geometric`` their geometric
    mean. All bounds are inclusive. A bound of None is not applied. Fields that the level or mode does not use are
    ignored.

    Args:
        is_level: level of the importance weights, or None for weight 1 on every kept token.
        is_mode: ``truncate`` limits weights to `is_upper` (TIS). ``clip`` limits them to both bounds.
            ``mask`` drops values outside (MIS, IcePop). One bound alone is a one-sided mask.
        is_lower: lower bound of ρ for the weights.
        is_upper: upper bound of ρ for the weights. ``truncate`` without it gives plain importance weights.
        rs_level: level of rejection sampling, or None for no rejection. With ``max`` the most extreme token decides for
            its sequence.
        rs_lower: lower bound, below which tokens or sequences are dropped.
        rs_upper: upper bound, above which tokens or sequences are dropped.
        rs_measure: quantity that rejection bounds. ``ratio`` is ρ. ``k2`` and ``k3`` are the estimators d²/2 and
            e^d − 1 − d. ``binary_kl`` is the KL divergence, rollout to trainer, of the token against all others.
            ``prob_diff`` is e^t − e^r, with a lower bound below 0.
        rs_by_advantage: true to apply the upper bound to tokens of positive advantage and the lower one to all others
            (DPPO).
        veto: lower bound of a token's ρ, below which its sequence is dropped.
        normalize: true to divide the weights by their mean over the batch, and over the ranks of a group. The mean is
            over tokens at level ``token``, else over sequences. Bounds are applied before.
        normalize_by: source of that mean in mode ``mask``: the ratios before masking (slime), or the weights with zeros
            (verl's IcePop). Without masking both are equal.
        denominator: divisor of a mean of token losses. ``keep`` divides by the tokens before the correction, so that
            dropped tokens count as 0. ``renormalize`` divides by the remaining tokens.
        clamp: scope of the limit of ±20 on log-ratios: the ``level``, or each ``token`` before the sum.

    Raises:
        ConfigurationError: a value has the wrong type, or values contradict each other.
    """

    is_level: Level | None = None
    is_mode: Mode = "truncate"
    is_lower: float | None = None
    is_upper: float | None = 2.0
    rs_level: RejectionLevel | None = None
    rs_lower: float | None = None
    rs_upper: float | None = None
    rs_measure: Measure = "ratio"
    rs_by_advantage: bool = False
    veto: float | None = None
    normalize: bool = False
    normalize_by: NormalizeBy = "ratios"
    denominator: Denominator = "keep"
    clamp: Clamp = "level"

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = _checked(entry.name, getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)  # 2 and 2.0 are one configuration, with one fingerprint
        self._check_weights()
        self._check_rejection()
        if self.veto is not None and not 0 < self.veto < 1:
            raise ConfigurationError(f"veto={self.veto!r} is not a ratio between 0 and 1; use one, such as 1e-4")

    def _check_weights(self) -> None:
        if self.is_level is None:
            if self.normalize:
                raise ConfigurationError("normalize=True without is_level has no weights to normalize; set is_level")
            return
        _check_bounds("is_lower", self.is_lower, "is_upper", self.is_upper)
        if self.is_upper is not None and self.is_upper == 0:
            raise ConfigurationError("is_upper=0: every weight would be 0; give a bound above 0, or None")
        if self.is_mode == "clip" and self.is_lower is None:
            raise ConfigurationError(
                "is_mode='clip' needs is_lower; set it, or use 'truncate' to limit weights from above only"
            )
        if self.is_mode != "truncate" and self.is_lower is None and self.is_upper is None:
            raise ConfigurationError(f"is_mode={self.is_mode!r} needs is_lower or is_upper; set one")

    def _check_rejection(self) -> None:
        if self.rs_level is None:
            return
        if self.rs_lower is None and self.rs_upper is None:
            raise ConfigurationError(f"rs_level={self.rs_level!r} needs rs_lower or rs_upper; set one")
        _check_bounds("rs_lower", self.rs_lower, "rs_upper", self.rs_upper, signed=self.rs_measure == "prob_diff")
        if self.rs_by_advantage and self.rs_level != "token":
            raise ConfigurationError(
                f"rs_by_advantage=True needs rs_level='token', not {self.rs_level!r}; change one of them"
            )

    @property
    def needs_advantages(self) -> bool:
        """True if the configuration uses advantages."""
        return self.rs_level is not None and self.rs_by_advantage

    def to_dict(self) -> dict[str, object]:
        """Return all fields as JSON types."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_dict` encoded. A missing field has its default.

        An unknown field of null is ignored, since recordings of other versions have such fields.

        Raises:
            ConfigurationError: not a mapping, an unknown field with a value, or an invalid value.
        """
        if not isinstance(document, Mapping):
            raise ConfigurationError(
                f"a correction is a mapping of fields, not {type(document).__name__}; pass a mapping"
            )
        known = {entry.name for entry in fields(cls)}
        stated = {name: value for name, value in document.items() if name in known or value is not None}
        cls._require_known(stated)
        return cls(**stated)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values. Raise `ConfigurationError` for an invalid value or an unknown field."""
        self._require_known(changes)
        return replace(self, **changes)

    def fingerprint(self) -> str:
        """Return 16 hex digits that identify this configuration, equal in every process.

        They are computed from the fields that differ from their defaults, so a field of a later release does not
        change them.
        """
        return fingerprint(canonical_json(self._stated()))

    def _stated(self) -> dict[str, object]:
        return {e.name: getattr(self, e.name) for e in fields(self) if getattr(self, e.name) != e.default}

    def __str__(self) -> str:
        stated = self._stated() | ({} if self.is_level is None else {"is_upper": self.is_upper})
        return ", ".join(f"{name}={value}" for name, value in stated.items()) or "no correction"

    @classmethod
    def _require_known(cls, names: Mapping[str, Any]) -> None:
        allowed = [entry.name for entry in fields(cls)]
        for name in names:
            if name not in allowed:
                close = difflib.get_close_matches(str(name), allowed, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(allowed)}"
                raise ConfigurationError(f"a correction has no field {name!r}; {meant}")


def _checked(name: str, value: Any) -> Any:
    """Return `value` in the type that the field stores."""
    if name not in _CHOICES:
        return None if value is None else _finite(name, value)
    choices = _CHOICES[name]
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        raise ConfigurationError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, choices))}")
    return value


def _finite(name: str, value: Any) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float):
        with suppress(OverflowError):  # an int that no float can hold
            if math.isfinite(number := float(value)):
                return number
    raise ConfigurationError(f"{name}={value!r} is not a finite number; pass one, or None for no bound")


def _check_bounds(low: str, lower: float | None, high: str, upper: float | None, *, signed: bool = False) -> None:
    for name, value in ((low, lower), (high, upper)):
        if value is not None and value < 0 and not signed:
            raise ConfigurationError(f"{name}={value!r} bounds values that are never below 0; use a bound ≥ 0")
    if lower is not None and upper is not None and lower > upper:
        raise ConfigurationError(f"{low}={lower!r} is above {high}={upper!r}; lower one or raise the other")
