"""Diagnoses as documents, of which a test names the parts that it is about."""

from __future__ import annotations

from typing import Any

from logprobe.monitor.judging.judgement import Growth


def finding(cause: str = "low_precision", **parts: Any) -> Any:
    """A `FindingDocument`."""
    return {
        "cause": cause, "layer": "inference_path", "confidence": 0.85, "evidence": {}, "explanation": "", "fix": "",
        "since_step": None, "settings": [], "share": {"now": None, "growth": None}, "urgency": "act",
        "vetoes": False, "accepted": None, **parts,
    }  # fmt: skip


def level(k3: float = 1e-3, **parts: Any) -> Any:
    """A `LevelDocument`."""
    return {
        "k3": k3, "numerics": k3, "expected": {"low": None, "high": None}, "setup": {}, "source": "", "bands": [],
        "status": "as expected", "first": None, "remembered": None, "settled": False, **parts,
    }  # fmt: skip


def diagnosis(verdict: str = "healthy", **parts: Any) -> Any:
    """A `DiagnosisDocument`; findings and level may be given in part, too."""
    findings = [finding(**each) for each in parts.pop("findings", ())]
    of_level = parts.pop("level", None)
    return {
        "run": "r", "verdict": verdict, "since_step": None, "doubling_steps": None, "layer": "none",
        "findings": findings, "not_measured": [], "correction": {"advice": "not_needed", "why": ""},
        "unexplained": None, "level": None if of_level is None else level(**of_level),
        "growth": Growth("no_data").document(), "why_it_grew": None, "lag": None, "discarded": None, "framework": None, **parts,
    }  # fmt: skip
