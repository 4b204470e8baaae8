"""Corrections of the objective for the mismatch between rollout and trainer: weights and masks of token losses."""

from logprobe.collectors.correction.apply import Correction, correct
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.correction.report import Report

__all__ = ["Correction", "CorrectionConfig", "Report", "correct"]
