"""Diagnose a run: read a frame, judge it, and add proven causes and the framework's setting names."""

from __future__ import annotations

import json
from collections.abc import Sequence

from logprobe.monitor import queries
from logprobe.monitor.analysis.slices import Steps
from logprobe.monitor.judging.accepted import accepted as accepted_of
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.judgement import Acceptance
from logprobe.monitor.judging.named import with_settings
from logprobe.monitor.judging.proven import latest, with_experiment
from logprobe.monitor.queries import Source


def diagnose(
    source: Source, run: str, *, steps: Steps = (None, None), accepted: Sequence[Acceptance] = ()
) -> DiagnosisDocument:
    """Return a new diagnosis of a run.

    Args:
        source: a `Reader` or a `Store`.
        run: name of the run.
        steps: first and last step, both included, or None for no bound.
        accepted: causes that the operator accepts.

    Raises:
        QueryError: the read failed, see `Reader.read`.
    """
    return look(source, run, steps=steps, accepted=accepted)[1]


def diagnosis_of(source: Source, run: str) -> tuple[DiagnosisDocument, bool]:
    """Return the stored diagnosis of a run and True, or a new one and False.

    Raises:
        QueryError: the read failed, see `Reader.read`.
    """
    for row in queries.diagnosis_latest(source, run=run).to_pylist():
        stored: DiagnosisDocument = json.loads(row["document"])
        return stored, True
    return diagnose(source, run, accepted=accepted_of(source, run)), False


def look(
    source: Source, run: str, *, steps: Steps = (None, None), accepted: Sequence[Acceptance] = ()
) -> tuple[Frame, DiagnosisDocument]:
    """Return the frame of a run and its diagnosis, see `diagnose`."""
    frame = gather(source, run, steps=steps)
    return frame, named(source, diagnosed(frame, accepted), frame)


def named(source: Source, diagnosis: DiagnosisDocument, frame: Frame) -> DiagnosisDocument:
    """Return the diagnosis of a frame with proven causes from experiments, and the framework's setting names.

    Raises `QueryError`.
    """
    return with_settings(with_experiment(diagnosis, latest(source, frame.run, "bisect")), frame.setup)
