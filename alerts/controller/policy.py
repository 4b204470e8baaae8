"""The policy: what the controller may do, and the limits it keeps to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from logprobe.collectors.correction import CorrectionConfig


class Mode(StrEnum):
    """What the controller does when it finds that a correction is the right medicine."""

    OFF = "off"  # nothing
    SUGGEST = "suggest"  # says so
    ARMED = "armed"  # switches it on


# Bounds as published with IcePop; tokens outside are masked, and counted.
DEFAULT_CORRECTION: Final = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the controller for one run.

    Shares are of 1. Steps are optimizer steps: how long something lasts is a matter of steps, not of hours.
    """

    mode: Mode = Mode.SUGGEST
    dry_run: bool = False  # decide and record as if armed, but tell the trainer nothing
    correction: CorrectionConfig = DEFAULT_CORRECTION
    notice_steps: int = 5  # between decision and first corrected step, so that all ranks have heard of it
    max_masked_share: float = 0.2  # of tokens, of sequences, of |advantage|
    min_coverage: float = 0.99
    min_confidence: float = 0.5  # of a finding upstream that makes the controller refuse
    min_weight_ess: float = 0.1  # of product-level weights; below, a few sequences decide the step
    max_diagnosis_lag: int = 200  # steps; an older verdict is none about the run as it is now
    cool_down_steps: int = 100
    max_switches: int = 4  # per run
    ack_steps: int = 5
    effect_steps: int = 50
    rollback_factor: float = 2.0  # measured masked share above this multiple of what the records say …
    rollback_margin: float = 0.05  # … and above it by this much: rolled back
