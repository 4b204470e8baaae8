"""Judge a run from positive evidence: first where the mismatch is, then why, then what to do about it.

    from logprobe.monitor.judging import diagnose

    with open_reader(home) as reader:
        print(diagnose(reader, "my-run").document())

`gather.gather` reads a `frame.Frame` of plain columns, `judge.judge` returns a `judgement.Judgement` of it and
`explain` says it in words. Five tests look at a frame (`counted`, `declared`, `distribution`, `contrast`, `course`).
`signatures.yaml` lists every cause with the test that names it and the facts on record that exclude it.
`thresholds.yaml` holds every number.

Names are imported when they are asked for: a list of runs needs a threshold of this package, and none of its rules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logprobe.monitor.judging.diagnosing import diagnose
    from logprobe.monitor.judging.result import Acceptance, Correction, Diagnosis, Finding, Level, NotMeasured

__all__ = ["Acceptance", "Correction", "Diagnosis", "Finding", "Level", "NotMeasured", "diagnose"]

_MODULES: Final = {"diagnose": "diagnosing"}  # else: result


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'result')}"), name)
