"""The judge's frame from today's evidence, so that runs of the zoo can be judged by both."""

from __future__ import annotations

import numpy as np

from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.judging.frame import Frame, Strata


def frame_of(evidence: Evidence) -> Frame:
    """Return the same columns."""
    s = evidence.all_steps
    flags = {name: _flags(getattr(s, name)) for name in ("cached", "in_flight")}
    version = np.array([None if np.isnan(v) else v for v in s.version.tolist()], object)
    return Frame(
        series=evidence.whole,
        strata=Strata(
            step=s.step, lag=s.lag, groups={**flags, "replica": s.replica, "version": version}, sequences=s.sequences, tokens=s.tokens,
            sum_k3=s.sum_k3, sum_abs_d=s.sum_abs_d, c_nn=s.c_nn, c_aa=s.c_aa, c_an=s.c_an,
        ),
        setup=evidence.setup,
        weights=evidence.weights,
        readings=evidence.readings,
        joins=evidence.joins,
        growth=evidence.growth,
        recorded=evidence.recorded,
    )  # fmt: skip


def _flags(codes: np.ndarray) -> np.ndarray:
    return np.array([None if code < 0 else bool(code) for code in codes.tolist()], object)
