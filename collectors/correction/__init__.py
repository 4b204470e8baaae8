"""Corrections of the objective for the gap that remains between rollout and trainer: weights and masks for token
losses."""

from logprobe.collectors.correction.apply import Correction, correct
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.correction.report import Report

__all__ = ["Correction", "CorrectionConfig", "Report", "correct"]
