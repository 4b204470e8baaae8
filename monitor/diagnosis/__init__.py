"""Diagnosis: which layer is at fault, since which step, and what to do about it.

from logprobe.monitor.diagnosis import diagnose

with open_reader(home) as reader:
    print(diagnose(reader, "my-run").document())
"""

from logprobe.monitor.diagnosis.causes import CAUSES
from logprobe.monitor.diagnosis.diagnose import diagnose
from logprobe.monitor.diagnosis.result import Acceptance, Correction, Diagnosis, Finding, Level, NotMeasured

__all__ = ["CAUSES", "Acceptance", "Correction", "Diagnosis", "Finding", "Level", "NotMeasured", "diagnose"]
