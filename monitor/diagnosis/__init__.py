"""Diagnosis: which layer is at fault, since which step, and what to do about it.

from logprobe.monitor.diagnosis import diagnose

with open_reader(home) as reader:
    print(diagnose(reader, "my-run").document())

Names are imported when they are asked for: a list of runs needs a threshold of this package, and none of its rules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logprobe.monitor.diagnosis.diagnosing import diagnose
    from logprobe.monitor.diagnosis.result import Acceptance, Correction, Diagnosis, Finding, Level, NotMeasured

__all__ = ["Acceptance", "Correction", "Diagnosis", "Finding", "Level", "NotMeasured", "diagnose"]

_MODULES: Final = {"diagnose": "diagnosing"}  # else: result


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'result')}"), name)
